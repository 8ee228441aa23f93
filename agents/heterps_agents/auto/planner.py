"""The planner `auto`: the exact solver where it is quick, else the learned policy and a search."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_agents.asymmetric.candidates import NEAR as NEAR_LANES
from heterps_agents.asymmetric.candidates import candidates
from heterps_agents.asymmetric.planner import AsymmetricPlanner
from heterps_agents.auto.bounds import bound_after
from heterps_agents.auto.chains import Chains
from heterps_agents.auto.choices import better, finished, part_of
from heterps_agents.auto.device_walk import best_over_devices
from heterps_agents.auto.fastest_kind import plan_of_fastest_kind
from heterps_agents.auto.going_on import GoingOn
from heterps_agents.auto.others import (
    ending_ways,
    finders,
    plan_of_finds,
    quick_plan,
    quick_plans,
    quick_ways,
)
from heterps_agents.auto.stage_sets import best_of_stage_sets
from heterps_agents.auto.walks import walked
from heterps_agents.auto.with_options import WithOptions
from heterps_agents.finishing.finds import best_of_finds
from heterps_agents.finishing.stage_walk import can_walk, walked_on
from heterps_agents.interface.patient import WAY_PART, first_part, has_far_devices, quick_part
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import register
from heterps_agents.interface.views import fastest
from heterps_agents.learned.efforts import DEFAULT_EFFORT, effort_named
from heterps_agents.learned.planner import DEFAULT_POLICY, PolicyPlanner
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import shipped
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulated_step_time_s

# Plans that take so many times what the best takes are finished before one is chosen.
NEAR_FINISH = 1.15
# Of what is left after first plans, for a walk by the clock; and what another one has to be after.
CLOCK_PART, CLOCK_GAIN = 1 / 3, 0.99
# Devices of which nothing is left out where time is limited: chains of all kinds and lanes from
# the best of them take a second or two.
MOST_UNHURRIED = 16


@register("auto")
class AutoPlanner:
    """The planner of choice.

    Where the exact solver is predicted to be quick: its optimum and those of some neighbouring
    problems. Elsewhere: the shipped policy (annealing, where none is shipped), what the exact
    solver had when it gave up, and the best of them polished. Everywhere greedy, the proportional
    placements, and what the closed form may underrate (`heterps_agents.finishing.finalists`). Of
    these, of small moves from the best, and of pipelines side by side
    (`heterps_agents.asymmetric`) the plan is returned that is best in the simulator.

    With a limit in time all of it is used: for what other planners answer, and for longer searches
    (`heterps_agents.auto.going_on`).

    Args:
        seed: Of all searches.
        effort: Name of an effort, see `heterps_configs.documents.effort.Effort`: how long the exact
            solver may take, how hard the policy tries, and how much is simulated.
        is_patient: Whether all seconds of a budget are used.

    Attributes:
        chains_only: Whether plans that are no chains are left out.

    Raises:
        UnknownNameError: No effort has that name.
    """

    name, chooses_options = "auto", True

    def __init__(
        self, seed: int = 0, effort: str = DEFAULT_EFFORT, *, is_patient: bool = True
    ) -> None:
        effort_named(effort)
        self.seed, self.effort, self.is_patient = seed, effort, is_patient
        self.chains_only = False

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan found.

        Its bound is `proven` when it is the optimum of the closed form. When another plan is
        faster in the simulator, the bound is that optimum, and the gap how far the plan is from it
        by the closed form. A plan that is no chain (`heterps_agents.asymmetric`) has no such gap.

        Raises:
            InfeasibleError: No plan was found.
        """
        if not (self.is_patient and budget.has_time_limit):
            return self._after_a_walk(problem, self._first(problem, budget), budget)
        own = budget.share(quick_part(problem))
        best: Plan | None = None
        for way in self.quick_ways(problem):
            if own.is_exhausted:
                break
            with part_of(own, WAY_PART) as part:
                found = self.quick_plan(problem, part, way)
            if found is not None:
                best = found if best is None else fastest(problem, [best, found])
        budget.charge(own)
        own = budget.share(first_part(problem))
        own.known_cost = budget.known_cost
        try:
            first = best_of_finds(problem, self.hurried(problem).plan(problem, own), own)
        except InfeasibleError:
            if best is None:
                raise
        else:
            best = first if best is None else fastest(problem, [first, best])
        budget.charge(own)
        return self.improved(problem, best, budget)

    def hurried(self, problem: Problem) -> Planner:
        """Who answers first where time is limited: the policy, which needs least of it.

        Of few devices the search for all chains, and for lanes, takes little more and finds more.
        """
        is_long = len(problem.cluster.devices) > MOST_UNHURRIED
        if is_long and DEFAULT_POLICY in shipped("policies"):
            planner = PolicyPlanner(self.seed, effort=self.effort)
            planner.name, planner.search_part = self.name, 1.0
            return planner
        if self.chains_only:
            chains = AutoPlanner(self.seed, self.effort, is_patient=False)
            chains.chains_only = True
            return chains
        lanes = AsymmetricPlanner(self.seed)
        lanes.name, lanes.chain_effort = self.name, self.effort
        return lanes

    def quick_ways(self, problem: Problem) -> tuple[str, ...]:
        """Names of what is asked first; each answers in tenths of a second."""
        return () if self.chains_only else quick_ways(problem)

    def ending_ways(self, problem: Problem) -> tuple[str, ...]:
        """Those of them that take no more than a second or two without any limit."""
        return () if self.chains_only else ending_ways(problem)

    def quick_plan(self, problem: Problem, budget: Budget, way: str) -> Plan | None:
        """What one of them answers; None where it has no plan that may be used.

        Args:
            problem: What was asked.
            budget: Its end ends this; plans that cost as much as it knows need not be found.
            way: One of `quick_ways`.
        """
        return quick_plan(problem, budget, self.seed, way)

    def quick_plans(
        self, problems: Sequence[Problem], budget: Budget, way: str
    ) -> dict[int, Plan] | None:
        """The same of several problems at once; None where the way looks at one at a time."""
        return quick_plans(problems, budget, self.seed, way)

    def nearby(self, problem: Problem, plan: Plan, budget: Budget) -> Plan:
        """A plan, or a better one near it that is found in a tenth of a second.

        Args:
            problem: What was asked.
            plan: One that fits.
            budget: With a limit in time.
        """
        ways = GoingOn(self.name, self.seed, self.effort, chains_only=self.chains_only)
        return ways.near(problem, plan, budget)

    def improved(self, problem: Problem, plan: Plan, budget: Budget) -> Plan:
        """A plan, or a better one that is found with all the time of a budget.

        Args:
            problem: What was asked.
            plan: One that fits.
            budget: With a limit in time.
        """
        ways = GoingOn(self.name, self.seed, self.effort, chains_only=self.chains_only)
        return ways.improved(problem, self._clocked(problem, plan, budget), budget)

    def of_stage_sets(
        self, problem: Problem, like: Plan, below_s: float, budget: Budget
    ) -> Plan | None:
        """A plan of fewer seconds, of stages that the bound does not rule out; None: no such plan.

        Args:
            problem: What was asked, with another size of micro-batches than some known plan.
            like: That plan.
            below_s: The seconds.
            budget: Its end ends this.
        """
        if self.chains_only:
            return None
        known = like.changed_unchecked(job=problem.job, predicted_step_time_s=below_s)
        return best_of_stage_sets(problem, known, budget)

    def _clocked(self, problem: Problem, plan: Plan, budget: Budget) -> Plan:
        """A plan, or a better one by walks by the clock, which see most; on while they gain."""
        if not can_walk(problem):
            return plan
        return walked_on(problem, plan, budget, self.seed, CLOCK_PART, CLOCK_GAIN)

    def _after_a_walk(self, problem: Problem, plan: Plan, budget: Budget) -> Plan:
        """The plan, or a better one on a short walk from it, where time does not end that."""
        if budget.has_time_limit or budget.is_exhausted:
            return plan
        best = walked(problem, plan, budget, 0)
        if has_far_devices(problem):
            found = best_over_devices(problem, best, budget, self.seed)  # a chain
            best = best if found is None else better(problem, best, found) or best
        return self._judged(problem, plan, best)

    def _first(self, problem: Problem, budget: Budget) -> Plan:
        """The best chain, or lanes side by side that small moves make of it."""
        chains = Chains(self.name, self.seed, self.effort)
        search = chains if problem.strategy.is_plain else WithOptions(chains)
        chain = search.best(problem, budget)
        assert chain.predicted_step_time_s is not None, "it was simulated"
        if chain.predicted_step_time_s > NEAR_LANES * budget.known_cost:
            return chain
        chain = self._on_fastest_kind(problem, chain, budget)
        chain = self._with_finds(problem, chain, budget)
        if budget.has_time_limit:  # without, a walk follows in any case
            chain = self._judged(problem, chain, self._clocked(problem, chain, budget))
        if self.chains_only:
            return chain
        found = candidates(problem, budget, chain, self.seed)
        best = found[0].changed(bound=Bound()) if found else chain
        return best_of_stage_sets(problem, best, budget) or best

    def _on_fastest_kind(self, problem: Problem, chain: Plan, budget: Budget) -> Plan:
        """The chain, or a better plan on the fastest devices alone."""
        assert chain.predicted_step_time_s is not None, "it was simulated"
        known = budget.known_cost
        if problem.job.objective == "throughput":
            budget.known_cost = min(known, chain.predicted_step_time_s)
        found = plan_of_fastest_kind(problem, budget, self.seed)
        budget.known_cost = known
        if found is None:
            return chain
        return self._judged(problem, chain, better(problem, chain, found) or chain)

    def _with_finds(self, problem: Problem, chain: Plan, budget: Budget) -> Plan:
        """The chain, or a better one that another planner found on its way."""
        found = [plan_of_finds(problem, budget, self.seed, name) for name in finders(problem)]
        plans = [chain, *(plan for plan in found if plan is not None)]
        seconds = [simulated_step_time_s(problem, plan) for plan in plans]
        near = [p for p, s in zip(plans, seconds, strict=True) if s <= NEAR_FINISH * min(seconds)]
        best = fastest(problem, [chain, *(finished(problem, p, budget) for p in near)])
        return self._judged(problem, chain, best)

    def _judged(self, problem: Problem, before: Plan, best: Plan) -> Plan:
        """A plan that came after another one, with its step time and its bound."""
        if best is before:
            return before
        step_time_s = simulated_step_time_s(problem, best)
        best = best.changed(planner=self.name, predicted_step_time_s=step_time_s)
        return best.changed(bound=bound_after(problem, before, best))
