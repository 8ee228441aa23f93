"""The plans of `auto` with options: searches over all ways, chains without, and even plans."""

from __future__ import annotations

import contextlib
import math

import numpy as np

from heterps_agents.auto.bounds import why_none
from heterps_agents.auto.chains import Chains
from heterps_agents.auto.others import COMPOSER, MOST_ISLANDS
from heterps_agents.exact.all_plans import bound_of_all
from heterps_agents.exact.planner import proving_tables
from heterps_agents.exact.solve import ExactResult, solve
from heterps_agents.finishing.near_plan import best_near
from heterps_agents.finishing.shortlist import Simulations
from heterps_agents.finishing.strategies import (
    NEAR_KNOWN_SUMS,
    allows_plain,
    best_with_options,
    is_hopeless,
    promised_cost,
)
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import planner_named
from heterps_agents.interface.views import fastest
from heterps_agents.learned.efforts import effort_named
from heterps_agents.learned.planner import DEFAULT_POLICY, PolicyPlanner
from heterps_agents.learned.search import learned_codes
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_agents.search.uniform import best_uniform
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.library import shipped
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import simulated_step_time_s

# Of a budget, for plans with options, where others are allowed too; and of what is left then, for
# those others.
OPTIONS_PART, PLAIN_PART = 1 / 2, 2 / 3
# Of what is left of a budget then, for plans composed of islands of equal devices; how long that
# takes doubles with each island.
COMPOSED_PART = 1 / 2
# With options the policy looks where there are at most so many ways to carry out a stage, replicas
# counted: a fraction of a second. So many of its placements are simulated.
LEAST_EFFORT, MOST_CANDIDATES, NUM_LEARNED = "fast", 1500, 6


class WithOptions:
    """Looks for chains whose stages may be carried out in several ways.

    Args:
        chains: Looks for those of single devices that keep all.
    """

    def __init__(self, chains: Chains) -> None:
        self.name, self.seed, self.effort = chains.name, chains.seed, chains.effort
        self._chains = chains

    def best(self, problem: Problem, budget: Budget) -> Plan:
        """The best of plans with options, of one without, and of even ones, as far as allowed.

        Raises:
            InfeasibleError: None was found.
        """
        is_throughput = problem.job.objective == "throughput"
        known = budget.known_cost
        found, optimum = self._found(problem, budget)
        budget.known_cost = known
        if is_throughput and math.isinf(known):
            found += self._composed(problem, budget)
        if not found:
            least_s = None if optimum is None else optimum.step_time_s
            raise InfeasibleError(why_none(problem, budget), least_s)
        found = [plan for plan in found if can_run(problem, plan)] or found
        plain = problem.plain
        best = fastest(plain, [choose_reduce(plain, plan) for plan in found])
        step_time_s = simulated_step_time_s(plain, best)
        if is_throughput and step_time_s < known and not budget.is_exhausted:
            best, step_time_s = best_near(problem, best, budget)
        best = best.changed(predicted_step_time_s=step_time_s)
        return best.changed(bound=self._bound_with_options(problem, best, optimum, budget))

    def _found(self, problem: Problem, budget: Budget) -> tuple[list[Plan], ExactResult | None]:
        """What each kind of search finds, and the optimum with options where it is known.

        The cost that the budget knows is then that of the best.
        """
        effort = effort_named(self.effort)
        settings = Simulations(self.name, effort.simulated_stages, solves_s=effort.exact_s)
        is_plain_allowed = allows_plain(problem.strategy)
        own = budget.share(OPTIONS_PART if is_plain_allowed else 1.0)
        own.known_cost = budget.known_cost
        first, optimum = best_with_options(
            problem, own, self.seed, settings, effort.exact_s, self._learned_codes
        )
        budget.charge(own)
        plans = [first]
        plain, known = problem.plain, budget.known_cost
        is_throughput = problem.job.objective == "throughput"
        if first is not None and is_throughput and can_run(problem, first):
            assert first.predicted_step_time_s is not None, "it was simulated"
            budget.known_cost = min(known, first.predicted_step_time_s)
        if is_plain_allowed and self._may_be_plain(plain, budget):
            # What is left then is for even plans.
            own = budget.share(PLAIN_PART)
            own.known_cost = budget.known_cost
            with contextlib.suppress(InfeasibleError):
                plans.insert(0, self._chains.best(plain, own))
            budget.charge(own)
        even = best_uniform(problem, budget, self.seed, below=budget.known_cost * NEAR_KNOWN_SUMS)
        if even is not None:
            plans.append(even.plan.changed(planner=self.name))
        return [plan for plan in plans if plan is not None], optimum

    def _composed(self, problem: Problem, budget: Budget) -> list[Plan]:
        """Even plans of equal devices, composed as Tangram does, where there are few kinds.

        Each part of the model has its own degree and replicas, of which searches find few at once.
        """
        if not 2 <= len(problem.classes) <= MOST_ISLANDS or budget.is_exhausted:
            return []
        own = budget.share(COMPOSED_PART)
        found = list[Plan]()
        with contextlib.suppress(HeterpsError):
            found = [planner_named(COMPOSER, self.seed).plan(problem, own)]
        budget.charge(own)
        return [plan.changed(planner=self.name) for plan in found]

    def _bound_with_options(
        self, problem: Problem, plan: Plan, optimum: ExactResult | None, budget: Budget
    ) -> Bound:
        """By the optimum of all options, where the exact solver knows it or quickly finds it."""
        exact_s = effort_named(self.effort).exact_s
        if optimum is None and problem.merges_nodes and not budget.is_exhausted:
            seconds = min(exact_s, budget.seconds_left)
            kernel = kernel_tables(proving_tables(problem))
            result = solve(kernel, Goal.of(problem.job), max_seconds=seconds)
            budget.spend_beside(result.transitions)
            optimum = None if result.code is None else result
        if optimum is not None:
            return bound_of_all(problem, plan, optimum, budget, exact_s)
        return bound_for(problem, plan)

    def _learned_codes(self, question: Question) -> list[Code]:
        """What the policy finds with little effort; nothing where that takes long."""
        most = min(MAX_REPLICAS, question.tables.num_micro_batches)
        num_candidates = int(np.minimum(question.tables.most_replicas, most).sum())
        if num_candidates > MOST_CANDIDATES or DEFAULT_POLICY not in shipped("policies"):
            return []
        if not math.isfinite(question.cost(question.start)):
            return []
        policy = PolicyPlanner(self.seed).policy_for(question.goal)
        return learned_codes(policy, question, effort_named(LEAST_EFFORT), NUM_LEARNED)

    def _may_be_plain(self, plain: Problem, budget: Budget) -> bool:
        """Whether plans without options may be better than what is known.

        The searches with options know them too. So where no simple one fits, none is sought again.
        """
        if math.isinf(budget.known_cost):
            return True
        cost = promised_cost(plain, budget)
        return math.isfinite(cost) and not is_hopeless(cost, budget.known_cost)
