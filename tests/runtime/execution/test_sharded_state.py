"""Replicas that share the optimizer's state: the training is that of one device."""

from __future__ import annotations

import pytest

from heterps_configs.documents.job import Schedule
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.specification.build import emulation_of
from tests.runtime.parity_checks import check_parity, problem_with
from tests.runtime.small_runs import plan_of, problem_of

SIZES = (4, 4, 2)


def _state_elements(run: LocalRun) -> dict[str, int]:
    """Numbers that each device's optimizer holds; where they share a parameter, each one once."""
    for name in {name for own in run.owned.values() for name in own.state_slices}:
        holders = [own for own in run.owned.values() if name in own.parameters]
        parts = [own.stepped[name].numel() for own in holders if name in own.stepped]
        assert sum(parts) == holders[0].parameters[name].numel()
    return {
        device: sum(tensor.numel() for tensor in own.stepped.values())
        for device, own in run.owned.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "schedule"),
    [("llama", "1f1b"), ("gpt2", "gpipe"), ("sequential", "interleaved"), ("llama", "zero-bubble")],
)
def test_replicas_step_their_parts_and_hand_them_out(model: str, schedule: Schedule) -> None:
    problem = problem_with(model, schedule, SIZES)
    last = problem.profile.num_layers - 1
    plan = plan_of(
        problem,
        {"a": (0, 1, "d0"), "b": (0, 1, "d1"), "c": (2, last, "d2"), "d": (2, last, "d3")},
        {("a", "c"): (0, 2), ("b", "d"): (1,)},
    )
    sharded = plan.changed(sharded_state=(LayerRange(first_layer=0, last_layer=last),))
    whole, shared = (_state_elements(check_parity(problem, each)) for each in (plan, sharded))
    for first, second in (("d0", "d1"), ("d2", "d3")):
        assert shared[first] < whole[first]
        assert shared[first] == pytest.approx(shared[second], rel=0.1, abs=40)


def test_emulated_devices_step_their_parts_only() -> None:
    problem = problem_of("sequential", slowdowns=(1.0, 2.0, 1.0, 1.0))
    plan = plan_of(
        problem, {"a": (0, -1, "d0"), "b": (0, -1, "d1")}, {("a",): (0, 2), ("b",): (1, 3)}
    )
    shared = plan.changed(sharded_state=(LayerRange(first_layer=0, last_layer=3),))
    whole_s, half_s = (_optimizer_s(problem, each) for each in (plan, shared))
    # Half of the eight layers, which all take the same, are stepped by halves.
    assert half_s == pytest.approx([0.75 * seconds for seconds in whole_s])


def _optimizer_s(problem: Problem, plan: Plan) -> list[float]:
    emulation = emulation_of(problem, plan, build_schedule(problem, plan))
    assert emulation is not None
    return [entry.optimizer_s for entry in emulation.devices if entry.device in plan.devices]
