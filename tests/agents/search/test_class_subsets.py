"""Sets of device classes: those that a placement may use, and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_agents.search.class_subsets import class_subsets, options_on, restricted
from heterps_configs.documents.job import Strategy
from heterps_envs.options import option_tables, options_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_envs.useful_options import with_columns
from tests.envs.small_problems import chain_problem

OPEN = Strategy(recompute="auto")


def problem_with(memory_bytes: tuple[int, ...]) -> Problem:
    """Three layers of 8000 bytes of state, on two devices of each memory, for the least price."""
    problem = chain_problem(
        [1.0] * 3,
        [2.0] * 3,
        speeds=[1.0] * len(memory_bytes),
        counts=[2] * len(memory_bytes),
        memory_bytes=memory_bytes,
        parameters=[1000] * 3,
        objective="price",
    )
    return replace(problem, strategy=OPEN)


@given(st.data(), st.integers(1, 6))
def test_each_set_is_of_classes_with_options_and_comes_once(
    data: st.DataObject, num_classes: int
) -> None:
    problem = problem_with((10**6,) * num_classes)
    tables = option_tables(problem, options_of(problem, OPEN))
    every = st.integers(0, tables.num_options - 1)
    tables = with_columns(tables, sorted(data.draw(st.sets(every, min_size=1))))
    subsets = list(class_subsets(tables))
    assert all(options_on(tables, [kind]) for subset in subsets for kind in subset)
    assert all(restricted(tables, subset).num_options > 0 for subset in subsets)
    assert len(set(subsets)) == len(subsets)
    assert set().union(*subsets) == set(tables.stage_options.class_of_option.tolist())


@pytest.mark.parametrize("memory_bytes", [(10**6, 1), (1, 10**6), (1, 2, 10**6)])
def test_the_least_price_is_found_beside_a_class_without_room(
    memory_bytes: tuple[int, ...],
) -> None:
    problem = problem_with(memory_bytes)
    plan = planner_named("unlearned-beam").plan(problem, Budget(300))
    assert estimate(problem, plan).feasible
