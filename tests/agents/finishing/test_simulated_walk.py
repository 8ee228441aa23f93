"""Random small changes of placements: all fit by the rule, and the walk keeps its best."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heterps_agents.finishing.simulated_costs import SimulatedCosts
from heterps_agents.finishing.simulated_walk import neighbours, walk
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.greedy import greedy_code
from heterps_envs.arrays import Code
from tests.envs.small_problems import chain_problem
from tests.uneven_problems import MakeProblem


@pytest.fixture
def question(make_problem: MakeProblem) -> Question:
    return Question.of(make_problem(), Budget(cpu_seconds=1.0))


def start_of(question: Question) -> Code:
    code = greedy_code(question)
    assert code is not None
    return code


def test_changes_differ_from_the_placement_and_one_another_and_fit(question: Question) -> None:
    code = start_of(question)
    found = neighbours(code, question, np.random.default_rng(0))
    keys = {other.tobytes() for other in found}
    assert len(keys) == len(found) > 4
    assert code.tobytes() not in keys
    assert all(math.isfinite(question.cost(other)) for other in found)


def test_equal_numbers_draw_equal_changes(question: Question) -> None:
    code = start_of(question)
    one, two = (neighbours(code, question, np.random.default_rng(7)) for _ in range(2))
    assert [each.tobytes() for each in one] == [each.tobytes() for each in two]


def test_a_walk_without_a_limit_ends_where_nothing_is_left_to_simulate() -> None:
    problem = chain_problem([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], speeds=(1.0, 2.0), counts=(2, 1))
    question = Question.of(problem, Budget())
    costs = SimulatedCosts(problem, question, "test")
    costs.allow(math.inf)
    start = costs.add(start_of(question))
    walk(costs, question, start, 1000)
    assert 1 < len(costs.found) < 100


@pytest.mark.slow
def test_a_walk_finds_no_worse_placement(make_problem: MakeProblem, question: Question) -> None:
    costs = SimulatedCosts(make_problem(), question, "test")
    costs.allow(math.inf)
    start = costs.add(start_of(question))
    walk(costs, question, start, 1000)
    assert costs.best_first()[0].cost <= start.cost
    assert len(costs.found) > 20
