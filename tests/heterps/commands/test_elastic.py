"""Options of `heterps run --elastic`."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.commands.elastic import ElasticOptions, elastic_options, newest_step
from heterps.reports.run_report import recovery_text
from heterps_configs.errors import HeterpsError
from heterps_runtime.elastic.records import Event
from heterps_runtime.run.recovery_record import Recovery
from heterps_runtime.specification.checkpoint_settings import CheckpointSettings
from tests.runtime.elastic.small_runs import chain, elastic_problem


def test_without_elastic_there_are_no_options() -> None:
    assert elastic_options(False) is None


@pytest.mark.parametrize(
    ("name", "given"),
    [("--heartbeat", {"heartbeat_s": 2.0}), ("--tolerate", {"tolerated": 0}),
     ("--lose", {"lose": ["d0@3"]}), ("--join", {"join": ["d0@3"]})],
)  # fmt: skip
def test_what_belongs_to_elastic_needs_it(name: str, given: dict[str, object]) -> None:
    with pytest.raises(HeterpsError, match=f"{name}: needs --elastic"):
        elastic_options(False, **given)  # type: ignore[arg-type]


def test_events_are_read() -> None:
    options = elastic_options(True, lose=["d0@3"], stop=["d1@4"], join=["d0@9"], heartbeat_s=2.0)
    assert options == ElasticOptions(
        2.0,
        1,
        (Event("lose", "d0", step=3), Event("stop", "d1", step=4), Event("join", "d0", step=9)),
    )


@pytest.mark.parametrize("text", ["d0", "@3", "d0@", "d0@x", "d0@-1"])
def test_an_event_of_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(HeterpsError, match="expected DEVICE@STEP, such as fast@10"):
        elastic_options(True, lose=[text])


def test_a_device_that_only_joins_is_absent_at_first() -> None:
    plan = chain(elastic_problem(), ("d0", "d1"))
    options = elastic_options(True, join=["d3@5", "d2@8", "d1@9"], lose=["d2@4", "d1@2"])
    assert options is not None
    assert options.absent(plan) == ["d3"]


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
    assert "lost d1: first new step (step 7) 250 ms after" in text
    assert "2 steps repeated; moved 1 MiB replica" in text
    assert text.endswith("merge: soonest")
