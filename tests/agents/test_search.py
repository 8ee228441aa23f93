"""Greedy, random and annealing on generated problems, measured against the exact solver."""

import math

import numpy as np
import pytest

from heterps_agents.annealing import anneal, polish
from heterps_agents.chunks import CHUNK, chunks
from heterps_agents.exact import solve
from heterps_agents.greedy import greedy_code
from heterps_agents.objective import Goal, code_cost
from heterps_agents.planner import Budget
from heterps_agents.random_search import random_code
from heterps_envs.closed_form import FITS, KernelTables, evaluate, kernel_tables
from heterps_envs.generator import generate
from heterps_envs.problem import CostTables


@pytest.fixture(scope="module")
def problems() -> list[tuple[CostTables, KernelTables, float]]:
    """Tables, kernel tables and the least step time of thirty problems that have a plan."""
    drawn = [(tables, kernel_tables(tables)) for tables in generate(30, seed=21)]
    solved = [(tables, kernel, solve(kernel).step_time_s) for tables, kernel in drawn]
    return [entry for entry in solved if math.isfinite(entry[2])]


def test_greedy_is_near_the_optimum_in_the_median(
    problems: list[tuple[CostTables, KernelTables, float]],
) -> None:
    gaps = []
    for tables, kernel, best_s in problems:
        code = greedy_code(tables, kernel, Goal(), Budget())
        gaps.append(math.inf if code is None else Goal().cost(code, kernel) / best_s - 1)
    assert np.median(gaps) < 0.15
    assert np.mean(np.isinf(gaps)) < 0.1


def test_annealing_finds_the_optimum_of_most_problems_from_nothing(
    problems: list[tuple[CostTables, KernelTables, float]],
) -> None:
    gaps = []
    for _, kernel, best_s in problems:
        start = np.zeros(kernel.num_layers, np.int16)
        code = anneal(start, kernel, Goal(), Budget(evaluations=20_000), seed=0)
        gaps.append(Goal().cost(code, kernel) / best_s - 1)
    assert np.median(gaps) < 0.03
    assert min(gaps) > -1e-9


def test_random_placements_keep_devices_and_memory(
    problems: list[tuple[CostTables, KernelTables, float]],
) -> None:
    found = 0
    for _, kernel, _ in problems:
        code = random_code(kernel, Goal(), Budget(evaluations=2000), seed=0)
        if code is not None:
            found += 1
            assert evaluate(code[None], kernel)[2][0] == FITS
    assert found > len(problems) * 0.8


def test_polish_never_makes_a_code_worse_and_repeats_itself(
    problems: list[tuple[CostTables, KernelTables, float]],
) -> None:
    for goal in (Goal(), Goal(is_price=True)):
        for tables, kernel, _ in problems[:10]:
            start = greedy_code(tables, kernel, goal, Budget())
            if start is None:
                continue
            before = start.copy()
            codes = [polish(start, kernel, 500, 3, goal) for _ in range(2)]
            np.testing.assert_array_equal(codes[0], codes[1])
            np.testing.assert_array_equal(start, before)
            after = code_cost(codes[0], kernel, goal.is_price, goal.floor_s)
            assert after <= code_cost(start, kernel, goal.is_price, goal.floor_s)


def test_chunks_cover_the_budget_once() -> None:
    budget = Budget(evaluations=2 * CHUNK + 5)
    pieces = list(chunks(budget, 10, seed=0))
    assert [piece.evaluations for piece in pieces] == [CHUNK, CHUNK, 5]
    assert pieces[0].start == 0
    assert [piece.stop for piece in pieces[:-1]] == [piece.start for piece in pieces[1:]]
    assert pieces[-1].stop == 1
    assert budget.evaluations_left == 0


def test_chunks_take_the_default_where_the_budget_has_no_limit_at_all() -> None:
    assert sum(piece.evaluations for piece in chunks(Budget(), 1234, seed=0)) == 1234


def test_the_smaller_limit_counts() -> None:
    budget = Budget(evaluations=5000)
    assert sum(p.evaluations for p in chunks(budget, 10, seed=0, max_evaluations=70)) == 70
    assert budget.evaluations_left == 4930
