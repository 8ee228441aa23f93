"""The simulator's choice among placements that are good by the closed form."""

import math
from collections.abc import Callable

import numpy as np

from heterps_agents.exact.solve import solve
from heterps_agents.finishing.shortlist import Simulations, best_simulated, neighbouring_optima
from heterps_agents.finishing.simulated_costs import LEAST_SIMULATIONS, Simulated
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_envs.arrays import Code
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import PlacedStage, encode
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import is_feasible
from tests.agents.replicas_without_room import replicas_without_room

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


def chosen(problem: Problem, codes: list[Code], goal: Goal | None = None) -> Simulated:
    question = Question.of(problem, Budget(), seed=3)
    question = question._replace(goal=goal or question.goal)
    return best_simulated(problem, question, codes, Simulations("test"))


def test_the_simulator_may_prefer_a_neighbour_of_the_optimum(make_problem: MakeProblem) -> None:
    problem = make_problem()
    kernel = kernel_tables(problem.tables)
    optimum = solve(kernel).code
    assert optimum is not None
    neighbours = neighbouring_optima(kernel, Goal(), Budget(), max_seconds=10.0)
    alone, found = chosen(problem, [optimum]), chosen(problem, [optimum, *neighbours])
    assert found.cost < alone.cost
    assert not np.array_equal(found.code, optimum)


def test_a_floor_that_the_simulator_misses_loses_against_one_that_it_keeps(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(objective="price", memory=4.0)
    cheap = encode([PlacedStage(0, 9, 2)])
    fast = encode([PlacedStage(0, 9, 0)])
    free = chosen(problem, [fast, cheap], Goal(True))
    assert free.plan.devices[0].startswith("small")
    slowest_s = (free.plan.predicted_step_time_s or 0) * 0.9
    kept = chosen(problem, [cheap, fast], Goal(True, slowest_s))
    assert kept.plan.devices[0].startswith("fast")


def test_equal_placements_go_to_the_first(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=4.0)
    first = encode([PlacedStage(0, 9, 0)])
    slower = encode([PlacedStage(0, 9, 2)])
    found = chosen(problem, [first, first.copy(), slower])
    assert np.array_equal(found.code, first)
    assert found.plan.seed == 3


def test_a_limit_of_stages_leaves_the_first_placements(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=4.0)
    slow = [encode([PlacedStage(0, cut, 2), PlacedStage(cut + 1, 9, 1)]) for cut in range(9)]
    slow += [encode([PlacedStage(0, cut, 1), PlacedStage(cut + 1, 9, 2)]) for cut in range(9)]
    fast = encode([PlacedStage(0, 9, 0)])
    question = Question.of(problem, Budget())
    found = best_simulated(problem, question, [*slow, fast], Simulations("test", most_stages=1))
    assert len(slow) > LEAST_SIMULATIONS
    assert not np.array_equal(found.code, fast)
    assert np.array_equal(chosen(problem, [*slow, fast]).code, fast)


def test_where_nothing_fits_as_simulated_the_exact_solver_finds_what_does() -> None:
    problem = replicas_without_room(30_000)
    question = Question.of(problem, Budget())
    optimum = solve(question.kernel, question.goal).code
    assert optimum is not None
    settings = Simulations("test")
    alone = best_simulated(problem, question, [optimum], settings)
    found = best_simulated(problem, question, [optimum], settings._replace(solves_s=1.0))
    assert not is_feasible(problem, alone.plan)
    assert is_feasible(problem, found.plan)
    assert found.plan.planner == "test"
