"""What `auto` does with time that is left: it goes on from the best plan, and searches longer."""

from __future__ import annotations

import contextlib
from itertools import count

from heterps_agents.asymmetric.candidates import LONGER, NEAR, THOROUGH, Trial, candidates
from heterps_agents.asymmetric.planner import NUM_FINISHED, AsymmetricPlanner
from heterps_agents.auto.bounds import bound_after
from heterps_agents.auto.chains import Chains
from heterps_agents.auto.choices import better, finished, part_of
from heterps_agents.auto.device_walk import best_over_devices
from heterps_agents.auto.others import (
    COMPOSER,
    is_composed,
    plan_of_finds,
    quick_plan,
    searchers,
    slower_plan,
)
from heterps_agents.auto.stage_sets import best_of_stage_sets
from heterps_agents.auto.walks import walked
from heterps_agents.auto.with_options import WithOptions
from heterps_agents.finishing.finalists import SEARCH_EVALUATIONS
from heterps_agents.finishing.finds import finds_of
from heterps_agents.finishing.near_plan import best_near
from heterps_agents.interface.patient import is_walked
from heterps_agents.interface.planner import Budget
from heterps_agents.plan_choices.divided_state import choose_divided
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulated_step_time_s
from heterps_envs.step_bounds.executable import (
    ANSWER_S,
    SAME,
    are_soon_too_few,
    goes_through_stages,
)

# Of the time that is left, for each walk, for lanes, for each of the searches that follow, and for
# one from the beginning.
WALK_PART, LANES_PART, SEARCH_PART, AFRESH_PART = 1 / 4, 1 / 2, 1 / 3, 1 / 2
# And first of all for plans of islands: those of the size of micro-batches that is best.
COMPOSED_PART = 1 / 3
# After that for sets of stages.
SETS_PART = 1 / 3
# For the question whether anything may be better.
PROOF_PART = 1 / 4
# For a walk over devices.
DEVICES_PART = 1 / 2
# In each round, for a whole search.
FINDS_PART = 1 / 2


class GoingOn:
    """Looks for better plans than one until the time is over.

    Args:
        planner: Name that plans carry.
        seed: Of all searches; later ones have the next seeds.
        effort: Name of an effort.
        chains_only: Whether plans that are no chains are left out.
    """

    def __init__(self, planner: str, seed: int, effort: str, *, chains_only: bool) -> None:
        self.name, self.seed, self.effort = planner, seed, effort
        self._chains_only = chains_only
        self._tried: dict[tuple[int, tuple[Stage, ...]], Trial] = {}

    def improved(self, problem: Problem, plan: Plan, budget: Budget) -> Plan:
        """The plan, or a better one.

        Args:
            problem: What was asked.
            plan: One that fits.
            budget: With a limit in time, all of which is used unless nothing can be better.
        """
        best = self._over_devices(problem, plan, budget, 0)
        best = self._of_stage_sets(problem, self._composed(problem, best, budget), budget)
        for number in count():
            if budget.is_exhausted or _is_proven(problem, best, budget):
                break
            best = self._round(problem, best, budget, number)
            best = self._slower(problem, best, budget) if number == 0 else best
        step_time_s = simulated_step_time_s(problem, best)
        best = best.changed(planner=self.name, seed=self.seed, predicted_step_time_s=step_time_s)
        return best.changed(bound=bound_after(problem, plan, best))

    def near(self, problem: Problem, best: Plan, budget: Budget, number: int = 0) -> Plan:
        """The plan, or the best of short annealings from it; with other seeds in each round."""
        if problem.job.objective == "price" or budget.is_exhausted:
            return best
        with part_of(budget, SEARCH_PART) as own:
            seeds = (2 * number, 2 * number + 1)
            return best_near(problem, best, own, seeds=seeds)[0]

    def _composed(self, problem: Problem, best: Plan, budget: Budget) -> Plan:
        """The plan, or a better one that is composed of islands."""
        if self._chains_only or budget.is_exhausted or not is_composed(problem):
            return best
        with part_of(budget, COMPOSED_PART) as own:
            found = quick_plan(problem, own, self.seed, COMPOSER)
        return best if found is None else _better(problem, best, found)

    def _over_devices(self, problem: Problem, best: Plan, budget: Budget, number: int) -> Plan:
        """The plan, or a better one on a walk over devices; later ones begin elsewhere."""
        if budget.is_exhausted or not is_walked(problem):
            return best
        with part_of(budget, DEVICES_PART) as own:
            found = best_over_devices(problem, best, own, self.seed + number)
        return best if found is None else _better(problem, best, found)

    def _of_stage_sets(self, problem: Problem, best: Plan, budget: Budget) -> Plan:
        """The plan, or a better one of stages that the bound does not rule out."""
        if self._chains_only or budget.is_exhausted:
            return best
        with part_of(budget, SETS_PART) as own:
            known = best.changed(predicted_step_time_s=simulated_step_time_s(problem, best))
            found = best_of_stage_sets(problem, known, own)
        return best if found is None else _better_finished(problem, best, found, budget)

    def _slower(self, problem: Problem, best: Plan, budget: Budget) -> Plan:
        """The plan, or a better one of planners that take longer."""
        if self._chains_only or budget.is_exhausted:
            return best
        with part_of(budget, 1.0) as own:
            if problem.job.objective == "throughput":
                own.known_cost = simulated_step_time_s(problem, best)
            found = slower_plan(problem, own, self.seed)
        return best if found is None else _better(problem, best, found)

    def _round(self, problem: Problem, best: Plan, budget: Budget, number: int) -> Plan:
        """The plan, or a better one, by each way in turn."""
        best = self.near(problem, best, budget, number)
        best = self._with_finds(problem, best, budget, number)
        best = self._walked(problem, best, budget, number)
        best = self._over_devices(problem, best, budget, 1 + number)
        before: Plan | None = None
        while before is not best:
            before, best = best, self._with_lanes(problem, best, budget)
        return self._searched_afresh(problem, best, budget, number)

    def _with_finds(self, problem: Problem, best: Plan, budget: Budget, number: int) -> Plan:
        """The best of what other planners find on their way, one of them in each round.

        A genetic search has the plan and what was found before among its first members: in tenths
        of a second it comes as far as in seconds without.
        """
        names = searchers(problem)
        if not names or budget.is_exhausted:
            return best
        with part_of(budget, FINDS_PART) as own:
            turn, index = divmod(number, len(names))
            known = [best, *finds_of(problem, budget)]
            found = plan_of_finds(problem, own, self.seed + turn, names[index], None, known)
            if found is None:
                return best
            return _better(problem, best, finished(problem, found, own))

    def _with_lanes(self, problem: Problem, best: Plan, budget: Budget) -> Plan:
        """The best with lanes side by side; longer where it was sought before."""
        key = problem.job.micro_batch_size, best.stages
        if self._chains_only or budget.is_exhausted or self._tried.get(key) is THOROUGH:
            return best
        self._tried[key] = trial = THOROUGH if key in self._tried else LONGER
        with part_of(budget, LANES_PART) as own:
            step_time_s = simulated_step_time_s(problem, best)
            known = best.changed(predicted_step_time_s=step_time_s)
            found = candidates(problem, own, known, self.seed, trial, NEAR)
        for each in found[:NUM_FINISHED]:
            best = _better_finished(problem, best, each, budget)
        return best

    def _walked(self, problem: Problem, best: Plan, budget: Budget, number: int) -> Plan:
        """The best on a walk over its stages, and on one over its lanes."""
        for seed in (2 * number, 2 * number + 1):
            if budget.is_exhausted or (seed % 2 == 1 and self._chains_only):
                break
            with part_of(budget, WALK_PART) as own:
                found = walked(problem, best, own, seed)
            if found is not best:
                # Micro-batches in flight are those of the plan where it began.
                best = _better_finished(problem, found, found, budget)
        return best

    def _searched_afresh(self, problem: Problem, best: Plan, budget: Budget, number: int) -> Plan:
        """The best of what a search finds that knows nothing of the plan, with another seed.

        Searches that know what the best plan takes leave out whatever their formulas do not like,
        and go on from nothing that is behind it before its lanes and micro-batches in flight are
        chosen: they find nothing more. What counts is another beginning.
        """
        if budget.is_exhausted:
            return best
        with part_of(budget, AFRESH_PART) as own, contextlib.suppress(HeterpsError):
            found = self._afresh(problem, own, number)
            best = _better_finished(problem, best, found, own)
        return best

    def _afresh(self, problem: Problem, budget: Budget, number: int) -> Plan:
        seed = self.seed + 1 + number
        if self._chains_only:
            chains = Chains(self.name, seed, self.effort, (1 + number) * SEARCH_EVALUATIONS)
            search = chains if problem.strategy.is_plain else WithOptions(chains)
            return search.best(problem, budget)
        planner = AsymmetricPlanner(seed)
        planner.chain_effort = self.effort
        return planner.plan(problem, budget)


def _is_proven(problem: Problem, best: Plan, budget: Budget) -> bool:
    """Whether the bound says that no plan is better; where it does so soon."""
    if not goes_through_stages(problem) or budget.seconds_left < ANSWER_S:
        return False
    divided = choose_divided(problem, best)
    least_s = simulated_step_time_s(problem, divided) * (1 - SAME)
    with part_of(budget, PROOF_PART) as own:
        return are_soon_too_few([problem], least_s, lambda: own.is_exhausted)


def _better_finished(problem: Problem, best: Plan, found: Plan, budget: Budget) -> Plan:
    """The better of two plans, the second with all that is chosen for a plan alone."""
    if budget.is_exhausted:
        return _better(problem, best, found)
    return _better(problem, best, finished(problem, found, budget))


def _better(problem: Problem, best: Plan, found: Plan) -> Plan:
    return better(problem, best, found) or best
