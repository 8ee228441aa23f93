"""The section of published fixtures: all are reached."""

from __future__ import annotations

from benchmarks.online.recovery.fixtures import run
from benchmarks.shared.row_store import Settings


def test_every_fixture_has_the_published_objective() -> None:
    result = run(Settings())
    assert [row for row in result.tables[0].rows if row["equal"] != "yes"] == []
    assert result.summary["fixtures_missed"] == 0
    assert result.summary["fixtures"] == len(result.tables[0].rows) >= 38
