"""What all searches under a budget keep: evaluations, seeds, the optimum as their limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question, Search
from heterps_agents.learned.unlearned_beam import beam_code, random_beam_code
from heterps_agents.search.annealing import annealed_code
from heterps_agents.search.cross_entropy import cross_entropy_code
from heterps_agents.search.genetic import genetic_code
from heterps_agents.search.random import random_code
from heterps_envs.closed_form.formula import FITS, REPLICA_SHIFT, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import generate

SEARCHES: dict[str, Search] = {
    "random": random_code,
    "annealing": annealed_code,
    "genetic": genetic_code,
    "cross-entropy": cross_entropy_code,
    "unlearned beam": beam_code,
    "random beam": random_beam_code,
}
TINY = generate(12, seed=5, layers=(3, 5), classes=(2, 2), count_range=(1, 2))
SMALL = generate(40, seed=6, layers=(4, 10), classes=(2, 3), count_range=(1, 3))


def goal_of(tables: CostTables, is_price: bool, slack: float = math.inf) -> Goal:
    """Throughput, or price under a floor of some times the shortest step time."""
    if not is_price:
        return Goal()
    return Goal(is_price=True, floor_s=slack * solve(kernel_tables(tables)).step_time_s)


def run(
    search: Search, tables: CostTables, goal: Goal, evaluations: int, seed: int = 0
) -> tuple[float, int]:
    """Cost of what a search finds, and the evaluations that it used."""
    budget, kernel = Budget(evaluations), kernel_tables(tables)
    code = search(Question(tables, kernel, goal, budget, seed))
    cost = math.inf if code is None else goal.cost(code, kernel)
    assert code is None or (code.shape == (tables.num_layers,) and code.dtype == np.int32)
    return cost, budget.evaluations_used


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("is_price", [False, True])
def test_no_search_beats_the_exact_solver_or_spends_more_than_it_may(
    name: str, is_price: bool
) -> None:
    @settings(max_examples=15, deadline=None)
    @given(
        index=st.integers(0, len(SMALL) - 1),
        evaluations=st.integers(1, 3000),
        seed=st.integers(0, 2**31),
        slack=st.sampled_from([1.2, 3.0, math.inf]),
    )
    def check(index: int, evaluations: int, seed: int, slack: float) -> None:
        tables = SMALL[index]
        goal = goal_of(tables, is_price, slack)
        optimum = solve(kernel_tables(tables), goal)
        cost, used = run(SEARCHES[name], tables, goal, evaluations, seed)
        assert used <= evaluations
        if optimum.code is None:
            assert math.isinf(cost)
        else:
            assert cost >= goal.cost(optimum.code, kernel_tables(tables)) * (1 - 1e-9)

    check()


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("is_price", [False, True])
def test_equal_seeds_give_equal_codes(name: str, is_price: bool) -> None:
    tables = SMALL[3]
    kernel, goal = kernel_tables(tables), goal_of(tables, is_price, 2.0)
    codes = [SEARCHES[name](Question(tables, kernel, goal, Budget(1500), 7)) for _ in range(2)]
    assert codes[0] is not None
    np.testing.assert_array_equal(codes[0], codes[1])


@pytest.mark.parametrize("name", ["genetic", "cross-entropy"])
@pytest.mark.parametrize("is_price", [False, True])
def test_tiny_problems_are_solved_to_the_optimum(name: str, is_price: bool) -> None:
    for tables in TINY:
        kernel, goal = kernel_tables(tables), goal_of(tables, is_price, 1.5)
        optimum = solve(kernel, goal)
        if optimum.code is None:
            continue
        cost, _ = run(SEARCHES[name], tables, goal, 20_000)
        assert cost == pytest.approx(goal.cost(optimum.code, kernel), rel=1e-9)


@pytest.mark.parametrize("name", sorted(set(SEARCHES) - {"random"}))
def test_a_search_never_loses_the_placement_that_it_starts_from(name: str) -> None:
    for tables in SMALL[:10]:
        kernel = kernel_tables(tables)
        best = solve(kernel).code
        if best is None:
            continue
        found = SEARCHES[name](Question(tables, kernel, Goal(), Budget(64), start=best))
        assert found is not None
        assert Goal().cost(found, kernel) == pytest.approx(Goal().cost(best, kernel))


@pytest.mark.parametrize("name", ["genetic", "cross-entropy"])
def test_processor_seconds_end_a_search(name: str) -> None:
    tables = SMALL[0]
    kernel = kernel_tables(tables)
    SEARCHES[name](Question(tables, kernel, Goal(), Budget(50)))  # compiles
    budget = Budget(cpu_seconds=0.05)
    assert SEARCHES[name](Question(tables, kernel, Goal(), budget)) is not None
    assert budget.is_exhausted
    assert budget.evaluations_used > 0


def test_codes_of_searches_keep_devices_and_memory() -> None:
    for tables in SMALL[:10]:
        kernel = kernel_tables(tables)
        for name, search in SEARCHES.items():
            code = search(Question(tables, kernel, Goal(), Budget(500), 1))
            if code is not None:
                assert evaluate(code[None], kernel)[2][0] == FITS, name


def test_the_cheapest_of_codes_that_do_not_fit_comes_nearest_to_fitting() -> None:
    tables = SMALL[0]
    kernel = kernel_tables(tables)
    best = solve(kernel).code
    assert best is not None
    too_many = np.full(tables.num_layers, 63 << REPLICA_SHIFT, np.int32)
    question = Question(tables, kernel, Goal(), Budget())
    assert question.cheapest([too_many, best]) is best
