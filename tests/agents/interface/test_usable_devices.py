"""Devices that hold no layer: every planner leaves them out, says so, and never divides by them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.planning.compare import compare
from heterps.planning.place import place
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import SECONDS_PER_LAYER, planner_named, planner_names
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
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


def with_messages(memory_bytes: tuple[int, ...], counts: tuple[int, ...]) -> Problem:
    """Three layers between which large tensors pass, for which devices keep room."""
    return chain_problem(
        [1.0] * 3,
        [2.0] * 3,
        num_micro_batches=4,
        speeds=[1.0 + index for index in range(len(counts))],
        counts=counts,
        memory_bytes=memory_bytes,
        parameters=[1000] * 3,
        output_bytes=[10_000.0] * 3,
    )


def is_answered(problem: Problem) -> bool:
    try:
        planner_named("exact").plan(problem, Budget())
    except InfeasibleError:
        return False
    return True


@pytest.mark.parametrize("memory_bytes", [(90_000, 50_000), (50_000, 90_000)])
def test_the_order_of_the_file_does_not_say_which_devices_are_left_out(
    memory_bytes: tuple[int, int],
) -> None:
    counts = tuple(1 if memory == max(memory_bytes) else 2 for memory in memory_bytes)
    with pytest.warns(UserWarning, match="2 class. left out"):
        usable = on_usable_devices(with_messages(memory_bytes, counts))
    assert [entry.devices[0].memory_bytes for entry in usable.classes] == [max(memory_bytes)]
    assert is_answered(usable)


def test_where_all_devices_together_hold_nothing_the_fastest_that_do_are_taken() -> None:
    problem = with_messages((60_000, 60_000), (2, 2))
    with pytest.warns(UserWarning, match=r"3 of 4 devices left out \(.*\): the more there are"):
        usable = on_usable_devices(problem)
    assert list(usable.device_named) == ["d0-0"]


class _Even:
    """Even plans, by a planner that heterps does not ship."""

    name, chooses_options = "own-even", True

    def __init__(self, asks_simulator: bool) -> None:
        self.asks_simulator = asks_simulator

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        return planner_named("uniform-3d").plan(problem, budget)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_planner_of_anybody_may_say_that_it_asks_the_simulator_for_memory() -> None:
    problem = with_messages((60_000, 60_000), (2, 2))
    shipped = place(problem, "uniform-3d").estimate.step_time_s
    own = [place(problem, _Even(asks)).estimate.step_time_s for asks in (True, False)]
    assert own[0] == shipped
    assert own[1] > shipped


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_bound_of_all_plans_counts_devices_that_are_left_out() -> None:
    # Together they hold the model as simulated, and not as planners count memory.
    problem = with_messages((60_000, 60_000), (2, 2))
    exact, even = place(problem, "exact"), place(problem, "uniform-3d")
    assert len(even.plan.devices) > len(exact.plan.devices)
    assert even.estimate.step_time_s < exact.estimate.step_time_s
    assert exact.executable.step_time_s is not None
    assert exact.executable.step_time_s <= even.estimate.step_time_s
    together = compare(problem, ["exact", "even"])
    assert together.executable_step_time_s is not None
    assert together.executable_step_time_s <= even.estimate.step_time_s


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(10_000, 200_000), st.integers(1, 3)), min_size=1, max_size=3),
    st.floats(1.0, 4.0),
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_more_memory_is_never_the_end_of_a_plan(
    groups: list[tuple[int, int]], times: float
) -> None:
    counts = tuple(count for _, count in groups)
    less = with_messages(tuple(memory for memory, _ in groups), counts)
    more = with_messages(tuple(int(memory * times) for memory, _ in groups), counts)
    assert is_answered(more) or not is_answered(less)
