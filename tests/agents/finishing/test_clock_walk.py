"""Walks by the clock: what they find fits, is better, and is known by its cost."""

from __future__ import annotations

import math

import pytest

from heterps_agents.finishing.clock_walk import best_by_clock, best_clocked, clocked_costs
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.random import random_code
from heterps_envs.arrays import Code
from heterps_envs.closed_form.placement import decode
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.simulate import simulated_step_time_s
from tests.uneven_problems import MakeProblem

COUNTS = (12, 20, 9)


@pytest.fixture
def problem(make_problem: MakeProblem) -> Problem:
    return make_problem(counts=COUNTS, global_batch_size=48, micro_batch_size=1)


def start_of(question: Question) -> Code:
    code = random_code(question._replace(budget=Budget(evaluations=4)))
    assert code is not None
    return code


def simulated_s(problem: Problem, question: Question, code: Code) -> float:
    plan = bound_plan(problem, decode(code, question.options), planner="test", seed=0)
    return simulated_step_time_s(problem, plan)


def test_what_a_walk_finds_fits_and_is_better_the_best_first(problem: Problem) -> None:
    question = Question.of(problem, Budget())
    start = start_of(question)
    found = best_by_clock(problem, question, [start], 2000)
    (start_s,), costs = (clocked_costs(problem, question, each) for each in ([start], found))
    assert all(math.isfinite(question.cost(code)) for code in found)
    assert costs == sorted(costs)
    assert costs[0] < 0.8 * start_s


def test_the_simulator_agrees(problem: Problem) -> None:
    question = Question.of(problem, Budget())
    start = start_of(question)
    best = best_by_clock(problem, question, [start], 2000)[0]
    assert simulated_s(problem, question, best) < 0.9 * simulated_s(problem, question, start)


def test_a_walk_begins_at_the_best_of_some(problem: Problem) -> None:
    question = Question.of(problem, Budget())
    starts = [start_of(question._replace(seed=seed)) for seed in range(6)]
    greedy = greedy_code(question)
    assert greedy is not None
    best = best_clocked(problem, question, [greedy, *starts])[0]
    found, alone = (
        best_by_clock(problem, question, each, 600) for each in ([greedy, *starts], [best])
    )
    assert [code.tobytes() for code in found] == [code.tobytes() for code in alone]


def test_equal_seeds_walk_alike_and_others_elsewhere(problem: Problem) -> None:
    question = Question.of(problem, Budget())
    start = start_of(question)
    first, again, other = (
        [
            code.tobytes()
            for code in best_by_clock(problem, question._replace(seed=seed), [start], 300)
        ]
        for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_budget_that_is_over_leaves_the_start(problem: Problem) -> None:
    question = Question.of(problem, Budget())
    start = start_of(question)
    over = Budget(evaluations=1)
    over.spend(1)
    (code,) = best_by_clock(problem, question._replace(budget=over), [start], 300)
    assert code.tobytes() == start.tobytes()
