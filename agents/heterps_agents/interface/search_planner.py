"""A search as a planner: it never ends below the placement that it starts from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def search_planner(
    name: str, start: Start | None = None, *, chooses_options: bool = True
) -> Callable[[AnySearch], AnySearch]:
    """Decorator that makes a search known as a planner.

    Args:
        name: The planner's name.
        start: Finds the placement that the search starts from; without it the search is on its own.
        chooses_options: Whether it knows more than one way to carry out a stage on a class.
    """

    def decorate(search: AnySearch) -> AnySearch:
        make = partial(SearchPlanner, name, search, start, chooses_options=chooses_options)
        register(name)(make)
        return search

    return decorate


class SearchPlanner:
    """What `search_planner` makes, with the seed of its random numbers.

    Attributes:
        hands_over_finds: `place` lets the simulator choose among what it found on its way. A rule
            that needs no start has one answer, which stays what it is.
        known: Plans that others found: a search that can begin at several does so.
    """

    def __init__(
        self,
        name: str,
        search: Search,
        start: Start | None,
        seed: int = 0,
        *,
        chooses_options: bool = True,
    ) -> None:
        self.name, self.seed, self.chooses_options = name, seed, chooses_options
        self._search, self._start = search, start
        self.hands_over_finds = start is not None
        self.known: Sequence[Plan] = ()

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan seen.

        Raises:
            InfeasibleError: None of the placements seen can be used.
        """
        asked = problem if self.chooses_options else problem.plain
        usable = on_usable_devices(asked) if asked.strategy.is_plain else asked
        return over_views(usable, budget, self._answer)

    def _answer(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan seen for one view of the problem."""
        question = Question.of(problem, budget, self.seed)
        if self._start is not None:
            question = question._replace(start=self._start(problem, question))
        known = [question.code_of(plan) for plan in self.known]
        question = question._replace(known=tuple(code for code in known if code is not None))
        found = None if budget.is_exhausted else self._search(question)
        codes = [code for code in (found, question.start) if code is not None]
        best = question.cheapest(codes) if codes else None
        return answer(
            problem, question.kernel, best, planner=self.name, seed=self.seed,
            options=question.options,
        )  # fmt: skip
