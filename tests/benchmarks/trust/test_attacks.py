"""Nobody gets in: attacks on real runs, from another network namespace, another address, inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.trust.attacks import attacks, sockets

pytestmark = pytest.mark.slow


def test_no_attack_succeeds(tmp_path: Path) -> None:
    rows = attacks(tmp_path)
    assert [row for row in rows if row.succeeded] == []
    assert all(row.tried > 0 for row in rows)


def test_commands_listen_on_the_loopback_alone(tmp_path: Path) -> None:
    for found in sockets(tmp_path):
        assert found.open_ones == [], found.command
        assert found.listeners, found.command
