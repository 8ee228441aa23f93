"""A search as a planner: it never ends below the placement that it starts from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from heterps_agents.interface.answer import answer
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question, Search
from heterps_agents.interface.registry import register
from heterps_agents.interface.views import over_views
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem

Start = Callable[[Problem, Question], Code]
AnySearch = TypeVar("AnySearch", bound=Search)


def search_planner(name: str, start: Start | None = None) -> Callable[[AnySearch], AnySearch]:
    """Decorator that makes a search known as a planner.

    Args:
        name: The planner's name.
        start: Finds the placement that the search starts from; without it the search is on its own.
    """

    def decorate(search: AnySearch) -> AnySearch:
        register(name)(partial(SearchPlanner, name, search, start))
        return search

    return decorate


class SearchPlanner:
    """What `search_planner` makes, with the seed of its random numbers."""

    chooses_options = True

    def __init__(self, name: str, search: Search, start: Start | None, seed: int = 0) -> None:
        self.name, self.seed = name, seed
        self._search, self._start = search, start

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan seen.

        Raises:
            InfeasibleError: None of the placements seen can be used.
        """
        usable = on_usable_devices(problem) if problem.strategy.is_plain else problem
        return over_views(usable, budget, self._answer)

    def _answer(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan seen for one view of the problem."""
        question = Question.of(problem, budget, self.seed)
        if self._start is not None:
            question = question._replace(start=self._start(problem, question))
        found = None if budget.is_exhausted else self._search(question)
        codes = [code for code in (found, question.start) if code is not None]
        best = question.cheapest(codes) if codes else None
        return answer(
            problem, question.kernel, best, planner=self.name, seed=self.seed,
            options=question.options,
        )  # fmt: skip
