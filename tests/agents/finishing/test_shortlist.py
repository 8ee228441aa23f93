"""The simulator's choice among placements that are good by the closed form."""

import math
from collections.abc import Callable

import numpy as np

from heterps_agents.exact.solve import solve
from heterps_agents.finishing.shortlist import best_simulated, neighbouring_optima
from heterps_agents.interface.planner import Budget
from heterps_envs.closed_form.formula import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import PlacedStage, encode
from heterps_envs.problem import Problem

MakeProblem = Callable[..., Problem]


def test_neighbours_fit_and_keep_the_floor(make_problem: MakeProblem) -> None:
    problem = make_problem(
        objective="price", min_throughput_samples_per_s=20, bandwidth_bytes_per_s=1e9
    )
    kernel, goal = kernel_tables(problem.tables), Goal.of(problem.job)
    codes = neighbouring_optima(kernel, goal, Budget(), max_seconds=10.0)
    optimum = solve(kernel, goal).code
    assert optimum is not None
    least = goal.cost(optimum, kernel)
    assert len(codes) > 1
    assert all(least * (1 - 1e-9) <= goal.cost(code, kernel) < math.inf for code in codes)


def test_no_time_means_no_neighbours(make_problem: MakeProblem) -> None:
    kernel = kernel_tables(make_problem().tables)
    assert neighbouring_optima(kernel, Goal(), Budget(), max_seconds=0.0) == []


def test_the_simulator_may_prefer_a_neighbour_of_the_optimum(make_problem: MakeProblem) -> None:
    problem = make_problem()
    kernel = kernel_tables(problem.tables)
    optimum = solve(kernel).code
    assert optimum is not None
    neighbours = neighbouring_optima(kernel, Goal(), Budget(), max_seconds=10.0)
    alone, _ = best_simulated(problem, kernel, [optimum], Goal(), planner="test", seed=0)
    chosen, code = best_simulated(
        problem, kernel, [optimum, *neighbours], Goal(), planner="test", seed=0
    )
    assert (chosen.predicted_step_time_s or 0) < (alone.predicted_step_time_s or 0)
    assert not np.array_equal(code, optimum)


def test_a_floor_that_the_simulator_misses_loses_against_one_that_it_keeps(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(objective="price", memory=4.0)
    kernel = kernel_tables(problem.tables)
    cheap = encode([PlacedStage(0, 9, 2)])
    fast = encode([PlacedStage(0, 9, 0)])
    free, _ = best_simulated(problem, kernel, [fast, cheap], Goal(True), planner="test", seed=0)
    assert free.devices[0].startswith("small")
    slowest_s = (free.predicted_step_time_s or 0) * 0.9
    kept, _ = best_simulated(
        problem, kernel, [cheap, fast], Goal(True, slowest_s), planner="test", seed=0
    )
    assert kept.devices[0].startswith("fast")


def test_equal_placements_go_to_the_first(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=4.0)
    kernel = kernel_tables(problem.tables)
    first = encode([PlacedStage(0, 9, 0)])
    slower = encode([PlacedStage(0, 9, 2)])
    plan, code = best_simulated(
        problem, kernel, [first, first.copy(), slower], Goal(), planner="test", seed=3
    )
    assert np.array_equal(code, first)
    assert plan.seed == 3
