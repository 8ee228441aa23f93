"""The planner `asymmetric`: pipelines of unlike depth, cuts and devices, side by side.

The question is that of AutoHet (Wang et al., 2025): several pipelines that each hold the model, on
unlike devices, cut in unlike ways, with unequal micro-batches; each layer's gradients are summed
over all that hold it. The formulation and the method are heterps's own. A plan here may be more:
blocks of layers, one after the other, of which each has its lanes side by side. One block of
several lanes is what AutoHet asks for; blocks of equal lanes are a chain with replicas.

It begins with the best chain that `auto` finds, and never answers with less.
"""

from __future__ import annotations

import copy
from typing import Protocol, runtime_checkable

from heterps_agents.asymmetric.candidates import NEAR, THOROUGH, candidates
from heterps_agents.asymmetric.exhaustive import best_of_all, can_be_exhaustive
from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named, register
from heterps_agents.interface.views import fastest
from heterps_agents.learned.efforts import DEFAULT_EFFORT
from heterps_agents.plan_choices.in_flight_choice import choose_in_flight
from heterps_agents.plan_choices.interleaving import interleave
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem

# Of a budget, for the best chain.
CHAIN_PART = 2 / 3
# Of plans that are better than the chain, or near it, as many may choose their sums and numbers in
# flight.
NUM_FINISHED = 3


@runtime_checkable
class ChainPlanner(Planner, Protocol):
    """A planner that can be kept from plans that are no chains, and from using all of its time."""

    chains_only: bool
    effort: str
    is_patient: bool


@register("asymmetric")
class AsymmetricPlanner:
    """The best plan of lanes: never above the best chain of `auto`.

    Where there are few plans of pipelines side by side, all that could be better are simulated.

    Args:
        seed: Of the searches for chains.

    Attributes:
        enumerates: Whether it does that.
        chain_effort: How hard `auto` tries for the best chain.
    """

    name, chooses_options, is_search = "asymmetric", True, True

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.enumerates, self.chain_effort = seed, True, DEFAULT_EFFORT

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan found.

        Raises:
            InfeasibleError: No chain was found.
        """
        if problem.strategy.is_plain:
            problem = on_usable_devices(problem)
        chain = self._chain(problem, budget)
        found = candidates(problem, budget, chain, self.seed, THOROUGH, NEAR)[:NUM_FINISHED]
        known = self._finished(problem, [chain, *found], budget)
        view = problem.by_node
        if self.enumerates and problem.job.objective != "price" and can_be_exhaustive(view):
            known = self._best_of_all(view, known, budget)
        return known.changed(planner=self.name, seed=self.seed)

    def _chain(self, problem: Problem, budget: Budget) -> Plan:
        """The best chain of `auto`, with its part of the budget."""
        planner = planner_named("auto", self.seed)
        assert isinstance(planner, ChainPlanner), "auto is one"
        planner = copy.copy(planner)
        planner.chains_only, planner.is_patient = True, False
        planner.effort = self.chain_effort
        own = budget.share(CHAIN_PART) if budget.is_limited else budget
        own.known_cost = budget.known_cost
        chain = planner.plan(problem, own)
        if own is not budget:
            budget.charge(own)
        return interleave(problem, chain, budget)

    def _finished(self, problem: Problem, plans: list[Plan], budget: Budget) -> Plan:
        """The best, with sums and numbers in flight as they are best for each."""
        finished = [
            choose_in_flight(problem, choose_reduce(problem, plan), budget) for plan in plans
        ]
        best = fastest(problem, finished)
        return best if best is finished[0] else best.changed(bound=Bound())

    def _best_of_all(self, problem: Problem, known: Plan, budget: Budget) -> Plan:
        assert known.predicted_step_time_s is not None, "it was simulated"
        best, _ = best_of_all(
            problem, Judged(known.predicted_step_time_s, known), Judge(problem, budget)
        )
        return best.plan.changed(bound=Bound()) if best.plan is not known else known
