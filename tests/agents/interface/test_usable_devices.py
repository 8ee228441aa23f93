"""Devices that hold no layer: every planner leaves them out, says so, and never divides by them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import SECONDS_PER_LAYER, planner_named, planner_names
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from tests.envs.small_problems import chain_problem

PLANNERS = [name for name in planner_names() if name not in SECONDS_PER_LAYER]
LAYERS = 6


def problem_with(memory_bytes: tuple[int, ...]) -> Problem:
    """Six layers of 8000 bytes of state, on two devices of each memory."""
    return chain_problem(
        [1.0] * LAYERS,
        [2.0] * LAYERS,
        speeds=[1.0] * len(memory_bytes),
        counts=[2] * len(memory_bytes),
        memory_bytes=memory_bytes,
        parameters=[1000] * LAYERS,
        output_bytes=[10.0] * LAYERS,
    )


@pytest.mark.parametrize("name", PLANNERS)
def test_a_planner_leaves_out_devices_that_hold_no_layer(name: str) -> None:
    problem = problem_with((10**6, 1))
    with pytest.warns(UserWarning, match=r"2 class1 left out: no layer fits .* of 1 B"):
        plan = planner_named(name).plan(problem, Budget(300))
    assert {device[:2] for device in plan.devices} == {"d0"}


@pytest.mark.parametrize("name", PLANNERS)
def test_a_planner_without_any_memory_says_what_is_missing(name: str) -> None:
    with pytest.raises(InfeasibleError, match=r"(B|KiB|MiB|GiB) (more|on)"):
        planner_named(name).plan(problem_with((1, 2)), Budget(300))


def test_where_all_can_be_used_the_problem_stays_as_it_is() -> None:
    problem = problem_with((10**6, 10**5))
    assert on_usable_devices(problem) is problem


def test_the_smallest_memory_goes_first_for_fewer_devices_need_less_room() -> None:
    usable = on_usable_devices(problem_with((10**6, 8500, 1)))
    assert [entry.name for entry in usable.classes][:1] == ["class0"]
    assert "class2" not in [entry.name for entry in usable.classes]


@pytest.mark.parametrize(
    "name", ["even", "memory-proportional", "annealing", "uniform-3d", "exact"]
)
def test_what_is_computed_again_needs_room_for_a_while(name: str) -> None:
    # Without parameters a layer that keeps nothing holds nothing, but for a while.
    problem = chain_problem(
        [1.0], [2.0], counts=(1,), memory_bytes=[10], parameters=[0], activation_bytes=[1000.0]
    )
    problem = replace(problem, strategy=Strategy(recompute="auto"))
    with pytest.raises(InfeasibleError):
        planner_named(name).plan(problem, Budget(50))
