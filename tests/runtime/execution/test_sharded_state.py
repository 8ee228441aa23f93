"""Replicas that share the optimizer's state: the training is that of one device."""

from __future__ import annotations

import pytest

from heterps_configs.documents.job import Schedule
from heterps_configs.documents.plan import LayerRange
from heterps_runtime.execution.local_run import LocalRun
from tests.runtime.parity_checks import check_parity, problem_with
from tests.runtime.small_runs import plan_of

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
