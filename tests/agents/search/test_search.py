"""Greedy, random and annealing on generated problems, measured against the exact solver."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from heterps_agents.exact.solve import solve
from heterps_agents.interface.chunks import CHUNK, chunks
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.annealing import SECOND_MOVE, anneal, move, polish
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.random import random_code
from heterps_envs.closed_form.formula import FITS, evaluate
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import Goal, code_cost, read_stages, search_cost, write_code
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import generate


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
        code = greedy_code(Question(tables, kernel, Goal(), Budget()))
        gaps.append(math.inf if code is None else Goal().cost(code, kernel) / best_s - 1)
    assert np.median(gaps) < 0.15
    assert np.mean(np.isinf(gaps)) < 0.1


def test_annealing_finds_the_optimum_of_most_problems_from_nothing(
    problems: list[tuple[CostTables, KernelTables, float]],
) -> None:
    gaps = []
    for _, kernel, best_s in problems:
        start = np.zeros(kernel.num_layers, np.int32)
        code = anneal(start, kernel, Goal(), Budget(evaluations=20_000), seed=0)
        gaps.append(Goal().cost(code, kernel) / best_s - 1)
    assert np.median(gaps) < 0.03
    assert min(gaps) > -1e-9


def test_random_placements_keep_devices_and_memory(
    problems: list[tuple[CostTables, KernelTables, float]],
) -> None:
    found = 0
    for tables, kernel, _ in problems:
        code = random_code(Question(tables, kernel, Goal(), Budget(evaluations=2000)))
        if code is not None:
            found += 1
            assert evaluate(code[None], kernel)[2][0] == FITS
    assert found > len(problems) * 0.8


@pytest.mark.parametrize("is_price", [False, True])
@pytest.mark.parametrize("floor_share", [1.5, math.inf])
def test_annealing_follows_its_rule_although_it_stops_counting_early(
    problems: list[tuple[CostTables, KernelTables, float]], is_price: bool, floor_share: float
) -> None:
    for _, kernel, best_s in problems[:5]:
        goal = Goal(is_price=is_price, floor_s=floor_share * best_s)
        start = np.zeros(kernel.num_layers, np.int32)
        found = anneal(start, kernel, goal, Budget(evaluations=300), 4, temperature=0.1)
        np.testing.assert_array_equal(found, _annealed_slowly(start, kernel, goal, 300, 4, 0.1))


def _annealed_slowly(
    start: NDArray[np.int32],
    kernel: KernelTables,
    goal: Goal,
    evaluations: int,
    seed: int,
    temperature: float,
) -> NDArray[np.int32]:
    """The rule of Kirkpatrick, Gelatt and Vecchi, every cost computed to the end."""
    rng, used = np.random.default_rng(seed), np.empty(kernel.num_classes, np.int64)
    stages = np.empty((kernel.num_layers, 3), np.int64)
    count = read_stages(start, stages)
    cost = search_cost(stages, count, kernel, used, goal)
    best, best_count, best_cost = stages.copy(), count, cost
    for step in range(evaluations):
        trial = stages.copy()
        trial_count = move(kernel, rng, trial, count, used)
        if rng.random() < SECOND_MOVE:
            trial_count = move(kernel, rng, trial, trial_count, used)
        new = search_cost(trial, trial_count, kernel, used, goal)
        now = temperature * (1 - step / evaluations) + 1e-9
        if new > cost and rng.random() >= math.exp(-math.log(new / cost) / now):
            continue
        stages, count, cost = trial, trial_count, new
        if cost < best_cost:
            best, best_count, best_cost = stages.copy(), count, cost
    code = np.zeros(kernel.num_layers, np.int32)
    write_code(best, best_count, code)
    return code


def test_polish_never_makes_a_code_worse_and_repeats_itself(
    problems: list[tuple[CostTables, KernelTables, float]],
) -> None:
    for goal in (Goal(), Goal(is_price=True)):
        for tables, kernel, _ in problems[:10]:
            start = greedy_code(Question(tables, kernel, goal, Budget()))
            if start is None:
                continue
            before = start.copy()
            codes = [polish(start, kernel, 500, 3, goal) for _ in range(2)]
            np.testing.assert_array_equal(codes[0], codes[1])
            np.testing.assert_array_equal(start, before)
            after = code_cost(codes[0], kernel, goal)
            assert after <= code_cost(start, kernel, goal)


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
