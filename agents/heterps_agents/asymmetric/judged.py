"""What the simulator says of plans: each once, and with more in flight where that is faster."""

from __future__ import annotations

import math
from typing import NamedTuple

from heterps_agents.interface.planner import Budget
from heterps_agents.plan_choices.in_flight_choice import with_more_in_flight
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.objective import Goal, graded_cost
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.plan_bound import least_step_time_s
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import prepared_is_feasible, prepared_step_time_s

# A bound may be above the time that it bounds by the rounding of sums.
ROUNDING = 1 - 1e-9


class Judged(NamedTuple):
    """A plan, and what the job minimises of it; inf where it does not fit or cannot be run."""

    cost: float
    plan: Plan


class Judge:
    """Simulates plans of one problem.

    Args:
        problem: What was asked.
        budget: Each simulation counts as an evaluation.
        stages: That may be simulated in all, replicas counted.
    """

    def __init__(self, problem: Problem, budget: Budget, stages: float = math.inf) -> None:
        self._problem, self._budget, self._stages_left = problem, budget, stages
        self._goal = Goal.of(problem.job)
        self.num_simulated = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether nothing more may be simulated."""
        return self._stages_left <= 0 or self._budget.is_exhausted

    def judged(self, plan: Plan, below: float = math.inf) -> Judged:
        """A plan as it is, or with more in flight, what is better.

        Args:
            plan: Unchecked or not.
            below: Of what costs as much, memory is not looked at; nor is what cannot cost less
                simulated, whose cost is then a bound that is no less.
        """
        return self._judged(PreparedPlan(self._problem, plan), below)

    def judged_with_sums(self, plan: Plan, below: float = math.inf) -> Judged:
        """The same with gradient sums beside passes or after them, what is better.

        Args:
            plan: One that has not chosen.
            below: See `judged`.
        """
        if self._problem.job.overlaps_reduce is not None:
            return self.judged(plan, below)
        prepared = PreparedPlan(self._problem, plan)
        both = [
            self._judged(prepared.changed(overlaps_reduce=overlaps), below)
            for overlaps in (True, False)
        ]
        return min(both, key=lambda each: each.cost)

    def _judged(self, prepared: PreparedPlan, below: float) -> Judged:
        if not can_run(self._problem, prepared.plan):
            return Judged(math.inf, prepared.plan)
        if below < math.inf:
            least = self._cost(prepared, least_step_time_s(prepared) * ROUNDING)
            if least >= below:  # however its passes are ordered
                self._budget.spend()
                return Judged(least, prepared.plan)
        ways = [self._timed(prepared)]
        eager = with_more_in_flight(ways[0][1])
        if eager is not None:
            ways.append(self._timed(eager))
        for cost, way in sorted(ways, key=lambda each: each[0]):
            if cost >= below or prepared_is_feasible(way):
                return Judged(cost, way.plan)
        return Judged(math.inf, prepared.plan)

    def _timed(self, prepared: PreparedPlan) -> tuple[float, PreparedPlan]:
        """What a plan costs, memory left aside, and the plan with its step time."""
        self._budget.spend()
        self._stages_left -= len(prepared.plan.stages)
        self.num_simulated += 1
        step_time_s = prepared_step_time_s(prepared)
        return self._cost(prepared, step_time_s), prepared.timed(step_time_s)

    def _cost(self, prepared: PreparedPlan, step_time_s: float) -> float:
        named = self._problem.device_named
        price = sum(named[name].price_usd_per_hour for name in prepared.plan.devices)
        return float(graded_cost(step_time_s, price, 0.0, self._goal))
