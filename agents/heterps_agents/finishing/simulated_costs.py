"""What placements cost as simulated: each is simulated once, and as many as a limit allows."""

from __future__ import annotations

import math
from typing import NamedTuple

from heterps_agents.interface.question import Question
from heterps_agents.plan_choices.in_flight_choice import with_more_in_flight
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Code
from heterps_envs.closed_form.objective import graded_cost
from heterps_envs.closed_form.placement import decode
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import (
    is_feasible,
    prepared_is_feasible,
    prepared_step_time_s,
)

# A choice needs some to choose from: so many placements, or as many as have so many stages.
LEAST_SIMULATIONS, ENOUGH_STAGES = 12, 4000
# So many times its cost counts a plan that cannot be run yet: it is chosen where nothing else fits.
CANNOT_RUN = 1e6


class Simulated(NamedTuple):
    """One placement that has been simulated.

    Attributes:
        cost: What the objective minimises, see `graded_cost`; `CANNOT_RUN` times that for a plan
            that cannot be run yet.
        found: Its plan, with its predicted step time; None where no node has room for one of its
            groups.
    """

    cost: float
    code: Code
    found: Plan | None

    @property
    def plan(self) -> Plan:
        """The plan of a placement that has one."""
        assert self.found is not None, "no devices were found"
        return self.found


class SimulatedCosts:
    """Simulates placements of one problem, which all fit by the rule of planners.

    That rule leaves some bytes of gradient sums out (`heterps_envs.layer_costs.memory_rule`), so
    `fits` is asked of what is chosen.

    Args:
        problem: What was asked.
        question: The same for searches; each simulation counts as an evaluation of its budget.
        planner: Name that plans carry.

    Attributes:
        found: All that were simulated, by code.
    """

    def __init__(self, problem: Problem, question: Question, planner: str) -> None:
        self._problem, self._question, self._planner = problem, question, planner
        self._stages_left, self._least_found = math.inf, 0
        self._enough = -math.inf
        self.found: dict[bytes, Simulated] = {}
        self._with_sums: dict[bytes, Simulated] = {}

    def allow(self, most_stages: float) -> None:
        """Sets what may be simulated from here on, instead of what was left.

        Args:
            most_stages: Stages, replicas counted: a simulation takes about a tenth of a millisecond
                for each. But at least `LEAST_SIMULATIONS` placements, unless those are so large
                that they have more than `ENOUGH_STAGES` together.
        """
        self._stages_left, self._least_found = most_stages, len(self.found) + LEAST_SIMULATIONS
        self._enough = most_stages - ENOUGH_STAGES

    @property
    def is_exhausted(self) -> bool:
        """Whether no other placement may be simulated."""
        has_some = len(self.found) >= self._least_found or self._stages_left <= self._enough
        is_used_up = self._stages_left <= 0 and has_some
        return is_used_up or self._question.budget.is_exhausted

    def add(self, code: Code) -> Simulated:
        """Simulates a placement, unless that has been done."""
        key = code.tobytes()
        if key not in self.found:
            self.found[key] = self._simulate(code)
        return self.found[key]

    def add_all(self, codes: list[Code]) -> list[Simulated]:
        """The very first is always simulated; the others while the limit allows."""
        return [self.add(code) for code in codes if not self.found or not self.is_exhausted]

    def best_first(self) -> list[Simulated]:
        """All of them; of equally good ones the first that was added."""
        return sorted(self.found.values(), key=lambda entry: entry.cost)

    def with_chosen_sums(self, entry: Simulated) -> Simulated:
        """The same placement with gradient sums where they are faster."""
        if entry.found is None:
            return entry
        key = entry.code.tobytes()
        if key not in self._with_sums:
            plan = choose_reduce(self._problem, entry.plan)
            is_same = plan is entry.plan
            self._with_sums[key] = entry if is_same else self._measured(entry.code, plan)
        return self._with_sums[key]

    def fits(self, entry: Simulated) -> bool:
        """Whether it keeps memory and the floor, by the simulator."""
        return entry.found is not None and is_feasible(self._problem, entry.plan)

    def _simulate(self, code: Code) -> Simulated:
        question = self._question
        placement = decode(code, question.options)
        question.budget.spend()
        try:
            plan = bound_plan(self._problem, placement, planner=self._planner, seed=question.seed)
        except InfeasibleError:  # no node has room for one of its groups
            return Simulated(math.inf, code, None)
        self._stages_left -= len(plan.stages)
        prepared = self._timed(PreparedPlan(self._problem, plan))
        return self._with_more_in_flight(self._measured(code, prepared.plan), prepared)

    def _with_more_in_flight(self, entry: Simulated, prepared: PreparedPlan) -> Simulated:
        """The same with more in flight, where that is faster: slow links are no reason against it.

        Whether memory has room for that is asked where it would be the best.
        """
        eager = with_more_in_flight(prepared)
        if eager is None:
            return entry
        self._stages_left -= len(eager.plan.stages)
        eager = self._timed(eager)
        found = self._measured(entry.code, eager.plan)
        if found.cost >= entry.cost:
            return entry
        is_best = found.cost < min((other.cost for other in self.found.values()), default=math.inf)
        return entry if is_best and not prepared_is_feasible(eager) else found

    def _timed(self, prepared: PreparedPlan) -> PreparedPlan:
        return prepared.timed(prepared_step_time_s(prepared))

    def _measured(self, code: Code, plan: Plan) -> Simulated:
        """What a plan costs whose step time is known."""
        assert plan.predicted_step_time_s is not None, "it was simulated"
        named = self._problem.device_named
        price = sum([named[name].price_usd_per_hour for name in plan.devices])
        cost = graded_cost(plan.predicted_step_time_s, price, 0.0, self._question.goal)
        if not can_run(self._problem, plan):
            cost *= CANNOT_RUN
        return Simulated(cost, code, plan)
