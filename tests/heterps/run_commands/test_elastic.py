"""`heterps run --elastic`: who is there at first, and what a recovery is told as."""

from __future__ import annotations

from pathlib import Path

from heterps.reports.run_report import recovery_text
from heterps.run_commands.elastic import absent_at_first, newest_step
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_runtime.results.changes import Recovery
from tests.runtime.elastic.small_runs import chain, elastic_problem


def test_a_device_that_only_joins_is_absent_at_first() -> None:
    plan = chain(elastic_problem(), ("d0", "d1"))
    events = [
        RunEvent(step=5, join="d3"), RunEvent(step=8, join="d2"), RunEvent(step=9, join="d1"),
        RunEvent(step=4, lose="d2"), RunEvent(step=2, lose="d1"),
        RunEvent(step=1, slow="d3", factor=2),
    ]  # fmt: skip
    assert absent_at_first(events, plan) == ["d3"]


def test_no_checkpoint_is_step_0(tmp_path: Path) -> None:
    assert newest_step(None) == 0
    assert newest_step(CheckpointSettings(folder=str(tmp_path / "none"))) == 0


def test_a_recovery_is_told_with_its_phases_and_sources() -> None:
    recovery = Recovery(
        generation=1, lost=("d1",), decision="merge: soonest", detected_s=0.02, replanned_s=0.01,
        connected_s=0.05, state_s=0.1, first_step_s=0.25, pause_s=0.26, from_step=7,
        steps_repeated=2, bytes_by_source={"replica": 2**20, "local": 0},
    )  # fmt: skip
    text = recovery_text(recovery)
    assert "lost d1: first new step (step 8) 250 ms after" in text
    assert "2 steps repeated; moved 1 MiB replica" in text
    assert text.endswith("merge: soonest")
