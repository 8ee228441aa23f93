"""A search as a planner: it starts from the best simple placement and never ends below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from heterps_agents.interface.answer import answer
from heterps_agents.interface.planner import Budget
from heterps_agents.search.starts import simple_codes
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.formula import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import Goal, code_cost
from heterps_envs.problem import CostTables, Problem


class Search(Protocol):
    """What the searches of this package have in common."""

    def __call__(
        self,
        tables: CostTables,
        kernel: KernelTables,
        goal: Goal,
        budget: Budget,
        seed: int,
        *,
        start: Code | None = None,
    ) -> Code | None:
        """The best code that was found; None where no placement was found that may be used.

        Args:
            tables: The problem.
            kernel: The same tables, for the kernels.
            goal: What to minimise.
            budget: What may be spent.
            seed: Equal seeds give equal codes, unless a limit in seconds ends the search.
            start: (L,) int16 placement that the search knows from the beginning; it need not fit.
                Its evaluation was paid for by who found it.
        """
        ...


class SearchPlanner:
    """The best of greedy and the proportional placements is where the search starts.

    Args:
        name: The planner's name.
        search: What it runs.
        seed: Of its random numbers.
    """

    def __init__(self, name: str, search: Search, seed: int) -> None:
        self.name, self.seed = name, seed
        self._search = search

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan seen.

        Raises:
            InfeasibleError: None of the placements seen can be used.
        """
        kernel, goal = kernel_tables(problem.tables), Goal.of(problem.job)
        start = cheapest(simple_codes(problem, kernel, goal, budget), kernel, goal)
        if not budget.is_exhausted:
            found = self._search(problem.tables, kernel, goal, budget, self.seed, start=start)
            start = cheapest([start] if found is None else [found, start], kernel, goal)
        return answer(problem, kernel, start, planner=self.name, seed=self.seed)


def cheapest(codes: Sequence[Code], kernel: KernelTables, goal: Goal) -> Code:
    """The best code by the closed form, or the one that comes nearest to fitting."""
    return min(codes, key=lambda code: float(code_cost(code, kernel, goal.is_price, goal.floor_s)))
