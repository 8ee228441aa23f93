"""Host times: what lies between the actions of a timeline, without waiting."""

from __future__ import annotations

import pytest

from heterps_configs.cluster import Link
from heterps_configs.estimate import TimelineEvent
from heterps_runtime.host_profiler import _plan, _problem, host_times
from heterps_runtime.run_result import RunResult
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


def test_the_pipeline_has_two_stages_on_each_process() -> None:
    problem = _problem(profile_of("sequential"), Link(latency_s=5e-5, bandwidth_bytes_per_s=1e9))
    devices = [stage.devices[0] for stage in _plan(problem).stages]
    assert devices == ["process-0", "process-1"] * 2
