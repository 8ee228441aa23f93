"""A spot trace for a real run: its events, and what is predicted beside what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps.online.spot_run import SpotRun, SpotRunReport, _lost_s
from heterps.planning.plans import load_plan_and_problem
from heterps.run_commands.event_files import read_events
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import ElasticSettings, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.spot.availability import hastened, spot_moments
from heterps_envs.spot.trace import parse_spot_trace
from heterps_runtime.results.changes import Recovery

Heterps = Callable[..., Any]

TRACE = """time_s,scope,name,event,count,price_usd_per_hour
600,device,slow-1,lost,,
1200,device,slow-1,back,,
1800,node,this-machine,available,2,
2400,trace,,end,,
"""


@pytest.fixture
def plan(blocks_plan: Path) -> Path:
    """Eight layers on four emulated devices."""
    return blocks_plan


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three changes in half an hour."""
    path = tmp_path / "spot.csv"
    path.write_text(TRACE)
    return path


def test_losses_and_returns_become_events_of_a_hastened_run(plan: Path, trace: Path) -> None:
    found, problem = load_plan_and_problem(plan)
    events = SpotRun.of(trace, 60).events(problem, found)
    assert events == (
        RunEvent(time_s=10.0, lose="slow-1"),
        RunEvent(time_s=20.0, join="slow-1"),
        RunEvent(time_s=30.0, lose="slow-0"),
        RunEvent(time_s=30.0, lose="slow-1"),
    )


def test_a_plan_needs_its_devices_from_the_beginning(plan: Path, trace: Path) -> None:
    trace.write_text(TRACE.replace("\n600,device,slow-1", "\n0,device,fast"))
    found, problem = load_plan_and_problem(plan)
    with pytest.raises(HeterpsError, match="the plan needs fast, which the trace has not at 0 s"):
        SpotRun.of(trace, 60).events(problem, found)


def test_a_process_that_starts_is_there_later_and_not_at_all_where_it_is_lost_before(
    plan: Path,
) -> None:
    _, problem = load_plan_and_problem(plan)
    text = TRACE.replace("1800,node,this-machine,available,2", "1380,device,slow-1,lost,")
    moments = spot_moments(parse_spot_trace(text), problem.cluster)
    times = [(m.time_s, len(m.available)) for m in hastened(moments, 60)]
    assert times == [(0.0, 4), (10.0, 3), (20.0, 4), (23.0, 3)]
    late = [(m.time_s, len(m.available)) for m in hastened(moments, 60, start_s=2.0)]
    assert late == [(0.0, 4), (10.0, 3), (22.0, 4), (23.0, 3)]
    too_late = [(m.time_s, len(m.available)) for m in hastened(moments, 60, start_s=5.0)]
    assert too_late == [(0.0, 4), (10.0, 3), (23.0, 3)]


def test_measured_seconds_are_parted_by_cause() -> None:
    class Result:
        recoveries = (
            Recovery(
                generation=1, lost=("a",), detected_s=0.1, replanned_s=0.2, connected_s=0.3,
                state_s=0.4, first_step_s=1.5, pause_s=1.5, from_step=2, steps_repeated=1,
            ),
            Recovery(
                generation=2, joined=("a",), replanned_s=9.0, connected_s=0.1, state_s=0.1,
                first_step_s=1.0, pause_s=0.4, from_step=3,
            ),
        )  # fmt: skip
        step_times_s = (0.5, 0.5, 0.5, 0.5)
        first_step = 0

    lost: dict[str, float] = _lost_s(Result(), 4.0)  # type: ignore[arg-type]
    assert lost["detection"] == pytest.approx(0.1)
    assert lost["re-planning"] == pytest.approx(0.2)
    assert lost["state"] == pytest.approx(0.9)
    assert lost["repeated steps"] == pytest.approx(0.5)
    assert sum(lost.values()) == pytest.approx(4.0 - 2.0)


def test_a_run_that_saves_nothing_has_its_report_too(plan: Path, trace: Path) -> None:
    class Result:
        recoveries = ()
        step_times_s = losses = (2.0, 2.0)
        first_step = 0

    found, problem = load_plan_and_problem(plan)
    spot = SpotRun.of(trace, 600)
    spot.events(problem, found)
    spot._times_s = [0.0, 2.0]
    spot.finish(Result(), problem, found, checkpoint=None, tolerated=1)  # type: ignore[arg-type]
    assert spot.report is not None
    assert spot.report.duration_s == 4.0
    assert spot.report.predicted_changes > 0


def test_a_trace_is_one_and_needs_an_elastic_run(heterps: Heterps, plan: Path, trace: Path) -> None:
    outcome = heterps("run", plan, "--events", trace)
    assert outcome.code == 2
    assert "--events FILE.csv: needs --elastic" in outcome.err
    outcome = heterps("run", plan, "--elastic", "--events", trace, "--events", trace)
    assert outcome.code == 2
    assert "is a second spot trace" in outcome.err


def test_a_trace_is_hastened_as_the_settings_say(trace: Path) -> None:
    settings = RunSettings(elastic=ElasticSettings(compress=60))
    events, spot = read_events([str(trace)], settings)
    assert events == ()
    assert spot is not None
    assert spot.compress == 60


def test_one_change_and_several_are_told_in_the_same_words() -> None:
    report = SpotRunReport(
        duration_s=2.0,
        predicted_samples_per_s=1.0,
        measured_samples_per_s=1.0,
        predicted_lost_s={},
        measured_lost_s={},
        predicted_changes=1,
        measured_changes=2,
        is_whole=True,
    )
    assert next(report.lines()).endswith("over 2.0 s; changes: 1 predicted, 2 measured")
