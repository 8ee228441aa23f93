"""A search as a planner: whether it found something or not, the start is not lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.search_planner import SearchPlanner
from heterps_agents.search.starts import simple_codes, simple_start
from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Code
from heterps_envs.closed_form.formula import REPLICA_SHIFT
from heterps_envs.problem import Problem

MakeProblem = Callable[..., Problem]


def nothing(question: Question) -> Code | None:
    """A search that finds nothing."""
    return None


def test_the_start_is_the_plan_of_a_search_that_finds_nothing(make_problem: MakeProblem) -> None:
    problem = make_problem()
    plan = SearchPlanner("nothing", nothing, simple_start, seed=5).plan(problem, Budget())
    question = Question.of(problem, Budget())
    best = simple_start(problem, question)
    assert (plan.planner, plan.seed) == ("nothing", 5)
    assert question.cost(best) == min(map(question.cost, simple_codes(problem, question)))


def test_without_a_start_there_is_no_plan(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match="nothing: "):
        SearchPlanner("nothing", nothing, None).plan(make_problem(), Budget())


def test_a_search_that_ends_below_its_start_is_not_believed(make_problem: MakeProblem) -> None:
    problem = make_problem()

    def poor(question: Question) -> Code | None:
        return np.full(question.kernel.num_layers, 63 << REPLICA_SHIFT, np.int32)

    plans = [
        SearchPlanner("poor", search, simple_start).plan(problem, Budget())
        for search in (nothing, poor)
    ]
    assert plans[0].stages == plans[1].stages
