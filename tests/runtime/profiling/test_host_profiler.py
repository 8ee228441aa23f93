"""Host times: what lies between the actions of a timeline, without waiting."""

from __future__ import annotations

import pytest

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.estimate import TimelineEvent
from heterps_runtime.profiling import host_profiler
from heterps_runtime.profiling.host_profiler import _plan, _problem, host_times
from heterps_runtime.results.result import RunResult
from tests.runtime.small_runs import profile_of

MICROSECOND_S = 1e-6


def _run(waiting_s: tuple[float, ...]) -> RunResult:
    """A process that receives, computes 1 ms and sends, as often as there are numbers."""
    events, now_s = [], 150 * MICROSECOND_S
    for number, wait_s in enumerate(waiting_s):
        for action, takes_s, behind_s in (
            ("receive", wait_s, 5e-6),
            ("forward", 1e-3, 12e-6),
            ("send", 0.0, 65e-6),
        ):
            events.append(
                TimelineEvent(
                    device="process-0",
                    action=action,
                    stage="s0",
                    micro_batch=number,
                    start_s=now_s,
                    end_s=now_s + takes_s,
                )
            )
            now_s += takes_s + behind_s
    step_s = events[-1].end_s + 100 * MICROSECOND_S
    return RunResult(
        predicted_step_time_s=step_s,
        measured_step_time_s=step_s,
        relative_error=0,
        times_of="this host",
        losses=(1.0,),
        step_times_s=(step_s,),
        generations=(0,),
        timeline=tuple(events),
    )


def test_host_times_are_the_gaps_between_actions_and_waiting_is_none_of_them() -> None:
    found = host_times(_run((15e-6, 15e-6, 15e-6, 2e-3, 3e-3)))
    assert found.action_s == pytest.approx(12e-6)
    # 65 us behind a message that was sent; 15 and 5 us for one that was there.
    assert found.send_s == pytest.approx(65e-6)
    assert found.receive_s == pytest.approx(20e-6)
    assert found.step_s == pytest.approx(250e-6)


def test_host_times_are_medians_over_the_steps_that_were_kept() -> None:
    usual = _run((15e-6, 15e-6, 15e-6))
    slow = _run((15e-6, 15e-6, 15e-6))
    late = tuple(
        event.changed(start_s=event.start_s + 1.0, end_s=event.end_s + 1.0)
        for event in slow.timeline
    )
    run = usual.changed(
        timeline=late,
        earlier_timelines=(usual.timeline, usual.timeline),
        losses=(1.0,) * 4,
        step_times_s=(9.0, *usual.step_times_s * 2, slow.step_times_s[0] + 1.0),
        generations=(0,) * 4,
    )
    found, expected = host_times(run), host_times(usual)
    for field in ("action_s", "send_s", "receive_s", "step_s"):
        assert getattr(found, field) == pytest.approx(getattr(expected, field))


@pytest.mark.slow
@pytest.mark.alone
def test_a_real_pipeline_tells_its_host_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_profiler, "NUM_RUNS", 1)
    monkeypatch.setattr(host_profiler, "NUM_STEPS", 5)
    found = host_profiler.measure_host_times(
        Link(latency_s=5e-5, bandwidth_bytes_per_s=1e9), (1.0, 1.1), {"adamw": (1.0, 1.4)}
    )
    assert min(found.action_s, found.send_s, found.receive_s, found.step_s) > 0
    assert found.slowdown_together == (1.0, 1.1)
    assert found.optimizer_slowdown_together == {"adamw": (1.0, 1.4)}


def test_the_pipeline_has_two_stages_on_each_process() -> None:
    problem = _problem(profile_of("sequential"), Link(latency_s=5e-5, bandwidth_bytes_per_s=1e9))
    devices = [stage.devices[0] for stage in _plan(problem).stages]
    assert devices == ["process-0", "process-1"] * 2
