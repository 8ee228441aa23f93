"""A few good placements, and what the simulator likes best of them and near them.

The closed form does not know of replicas that wait for their turn, nor of neighbours that are late:
where links are slow or few micro-batches are in flight, its optimum can be slower in the simulator
than a placement that is second by the closed form. So the optima of some neighbouring problems
join: slower links, a tighter throughput floor. Then small moves are tried on the simulator.
"""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact.runnable import Limits, best_runnable
from heterps_agents.exact.solve import predicted_seconds, solve
from heterps_agents.finishing.simulated_costs import Simulated, SimulatedCosts
from heterps_agents.finishing.simulated_moves import descend, improve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.arrays import Code
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.problem import Problem
from heterps_envs.simulator.plan_bound import CLOSE

# The first placement is left only for one that is this much better in the simulator.
MARGIN = 1.001
# The best of these by the simulator may choose where their gradient sums are.
NUM_FINALISTS = 3


class Variant(NamedTuple):
    """A neighbouring problem: links slower by a factor, a tighter floor."""

    link_factor: float
    floor_factor: float


VARIANTS = (
    Variant(4.0, 1.0),
    Variant(1.0, 0.9),
    Variant(2.0, 1.0),
    Variant(1.0, 0.8),
    Variant(1.5, 1.0),
    Variant(8.0, 1.0),
)


def neighbouring_optima(
    kernel: KernelTables, goal: Goal, budget: Budget, max_seconds: float
) -> list[NDArray[np.int32]]:
    """Codes of the optima of as many variants as the predicted seconds allow.

    All of them fit and keep the floor by the closed form of the problem itself.
    """
    has_floor = math.isfinite(goal.floor_s)
    each_s, codes = predicted_seconds(kernel), []
    affordable = int(min(max_seconds, budget.seconds_left) / max(each_s, 1e-9))
    wanted = [variant for variant in VARIANTS if has_floor or variant.floor_factor == 1.0]
    for variant in wanted[:affordable]:
        slower = kernel._replace(
            latency_s=kernel.latency_s * variant.link_factor,
            inverse_bandwidth_s_per_byte=kernel.inverse_bandwidth_s_per_byte * variant.link_factor,
            ring_latency_s=kernel.ring_latency_s * variant.link_factor,
            ring_inverse_bandwidth=kernel.ring_inverse_bandwidth * variant.link_factor,
        )
        result = solve(
            slower,
            Goal(goal.is_price, goal.floor_s * variant.floor_factor),
            max_seconds=max_seconds,
        )
        budget.spend_beside(result.transitions)
        if result.code is not None:
            codes.append(result.code)
    return codes


class Simulations(NamedTuple):
    """How much is simulated.

    Attributes:
        planner: Name that the plan carries.
        most_stages: Stages that may be simulated for some codes and moves from them, see
            `SimulatedCosts`.
        bound: No placement costs less, simulated; None: no moves.
        descends: Moves begin at each placement, not only near the best; as much again may be
            simulated for them.
        solves_s: Predicted seconds of the exact solver for others, where none of them fits as
            simulated (`exact.runnable`).
    """

    planner: str
    most_stages: float = math.inf
    bound: float | None = None
    descends: bool = False
    solves_s: float = 0.0


class Shortlist:
    """Placements of one problem that have been simulated, and the best of them.

    Args:
        problem: What was asked.
        question: The same for searches, with objective, floor, budget and seed.
        settings: How much is simulated.
    """

    def __init__(self, problem: Problem, question: Question, settings: Simulations) -> None:
        self.problem, self.question, self._settings = problem, question, settings
        self._costs = SimulatedCosts(problem, question, settings.planner)
        self._first: Simulated | None = None

    def consider(self, codes: list[Code], most: float = math.inf) -> None:
        """Simulates placements, then small moves from the best of all.

        Args:
            codes: At least one in the first call; ties, and gains under `MARGIN`, go to its first.
            most: No moves where the best costs more.
        """
        self._costs.allow(self._settings.most_stages)
        added = self._costs.add_all(codes)
        self._first = self._first or added[0]
        if self._settings.bound is not None and self.least_cost <= most:
            question = self.question
            improve(self._costs, question.kernel, question.goal, self._settings.bound)
            if self._settings.descends:
                self._descend(added)

    def _descend(self, added: list[Simulated]) -> None:
        """Moves from each placement in turn, the best first; as much again may be simulated."""
        question, least = self.question, self._settings.bound or 0.0
        self._costs.allow(self._settings.most_stages)
        for entry in sorted(added, key=lambda each: each.cost):
            if self.least_cost > least * CLOSE and entry.found is not None:
                descend(self._costs, question.kernel, question.goal, entry)

    @property
    def least_cost(self) -> float:
        """Of what has been simulated, before gradient sums are where they are faster."""
        return self._costs.best_first()[0].cost

    def best(self) -> Simulated:
        """The best that fits, with gradient sums where they are faster."""
        assert self._first is not None, "nothing has been considered"
        costs = self._costs
        best = self._fitting() or self._others_fitting() or [self._first]
        first, *others = [costs.with_chosen_sums(entry) for entry in (self._first, *best)]
        least = min(others, key=lambda entry: entry.cost)
        return least if least.cost * MARGIN < first.cost or not costs.fits(first) else first

    def _fitting(self) -> list[Simulated]:
        """The best few of those that keep all as simulated."""
        costs = self._costs
        fitting = (entry for entry in costs.best_first() if costs.fits(entry))
        return list(islice(fitting, NUM_FINALISTS))

    def _others_fitting(self) -> list[Simulated]:
        """Those that keep all under tighter limits, where the exact solver is quick."""
        assert self._first is not None, "nothing has been considered"
        _, kernel, goal, budget, *_ = self.question
        most_solves = int(self._settings.solves_s / max(predicted_seconds(kernel), 1e-9))
        if most_solves == 0:
            return []
        with suppress(HeterpsError):  # none, or the first one finds no devices
            plan = best_runnable(
                self.problem, Limits(kernel, goal), self._first.code, self._plan_of, budget,
                most_solves,
            )  # fmt: skip
            # What only fits with what is chosen for it later is none of those that fit now.
            return self._fitting() or [e for e in self._costs.best_first() if e.found is plan]
        return []

    def _plan_of(self, code: Code) -> Plan:
        found = self._costs.add(code).found
        if found is None:
            raise InfeasibleError("no node has room for one of its groups")
        return found


def best_simulated(
    problem: Problem, question: Question, codes: list[Code], settings: Simulations
) -> Simulated:
    """The best of some placements and of small moves from them, see `Shortlist`."""
    shortlist = Shortlist(problem, question, settings)
    shortlist.consider(codes)
    return shortlist.best()
