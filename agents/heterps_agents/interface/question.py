"""What every search is asked, and what a search is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple, Protocol

from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import MISSES_FLOOR, Goal, code_cost
from heterps_envs.closed_form.placement import decode, encode, placement_of
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import StageOption
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.useful_options import useful_options


class Question(NamedTuple):
    """What to minimise on which problem, and what that may take.

    Attributes:
        tables: The problem.
        kernel: The same tables, for the kernels.
        goal: What to minimise.
        budget: What may be spent.
        seed: Equal seeds give equal codes, unless a limit in seconds ends the search.
        start: (L,) int32 placement that the search knows from the beginning; it need not fit. Its
            evaluation was paid for by who found it.
        options: Of the tables; empty: one for each class.
        problem: That the tables are of, as they stand; None: what is found counts for nobody.
        known: Placements that others found and that fit: a search may begin with them as well.
    """

    tables: CostTables
    kernel: KernelTables
    goal: Goal
    budget: Budget
    seed: int = 0
    start: Code | None = None
    options: tuple[StageOption, ...] = ()
    problem: Problem | None = None
    known: tuple[Code, ...] = ()

    @classmethod
    def of(cls, problem: Problem, budget: Budget, seed: int = 0) -> Question:
        """What a job asks, with no start, and with the options of the problem's strategy."""
        options: tuple[StageOption, ...] = ()
        tables = problem.tables
        if not problem.strategy.is_plain:
            options, tables, _ = useful_options(problem)
        goal = Goal.of(problem.job)
        return cls(
            tables, kernel_tables(tables), goal, budget, seed, options=options, problem=problem
        )

    def cost(self, code: Code | None) -> float:
        """What is minimised; inf for a placement that may not be used, and for none."""
        return float("inf") if code is None else self.goal.cost(code, self.kernel)

    def code_of(self, plan: Plan) -> Code | None:
        """The code of a plan that is a placement of the problem and fits; None of any other one."""
        assert self.problem is not None
        # Plans may use devices that a search does without, as no layer fits there.
        has_all = all(name in self.problem.class_of for name in plan.devices)
        placement = placement_of(self.problem, plan) if has_all else None
        if placement is None:
            return None
        try:
            code = encode(placement, self.options)
        except ValueError:  # an option that another one dominates here
            return None
        return code if math.isfinite(self.cost(code)) else None

    def found(self, code: Code, cost: float) -> None:
        """Tells the budget of a code and its cost, for curves; one that fits counts."""
        if self.problem is not None and cost < MISSES_FLOOR:
            self.budget.found(cost, partial(self.plan_of, code), id(self.problem))

    def found_all(self, codes: Iterable[Code | None]) -> None:
        """The same of several; what is None was not found."""
        for code in codes:
            if code is not None:
                self.found(code, self.cost(code))

    def plan_of(self, code: Code) -> Plan:
        """The plan of a code, on the devices that bind best."""
        assert self.problem is not None
        placement = decode(code, self.options)
        return bound_plan(self.problem, placement, planner="", seed=self.seed)

    def cheapest(self, codes: Iterable[Code]) -> Code:
        """The best code by the closed form, or the one that comes nearest to fitting."""
        return min(codes, key=lambda code: float(code_cost(code, self.kernel, self.goal)))


class Search(Protocol):
    """What all searches have in common."""

    def __call__(self, question: Question) -> Code | None:
        """The best code that was found; None where no placement was found that may be used."""
        ...
