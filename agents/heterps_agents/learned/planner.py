"""The planner `ppo`: a trained policy, its beams, and the improvement of what they find."""

from __future__ import annotations

import contextlib
import math
from typing import NamedTuple

from heterps_agents.finishing.finalists import finalists
from heterps_agents.finishing.finds import best_of_finds
from heterps_agents.finishing.shortlist import Simulations, best_simulated
from heterps_agents.finishing.strategies import (
    NEAR_KNOWN,
    NEAR_KNOWN_SUMS,
    NONE_NEAR,
    allows_plain,
    is_hopeless,
    promised_cost,
)
from heterps_agents.interface.answer import answer
from heterps_agents.interface.patient import MANY_DEVICES
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import planner_named, register
from heterps_agents.interface.views import fastest, over_views
from heterps_agents.learned.beam import Scorer
from heterps_agents.learned.efforts import DEFAULT_EFFORT, effort_named, harder
from heterps_agents.learned.fastest_kind import is_worth_asking, on_fastest_kinds
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.search import learned_code, learned_codes
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_agents.search.even_options import even_codes
from heterps_agents.search.starts import NUM_EVEN, simple_start
from heterps_agents.search.uniform import best_uniform
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import bound_for, least_cost, price_bound
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import simulated_step_time_s

DEFAULT_POLICY = "generalist"
# For the objective price.
PRICE_POLICY = "price-generalist"
# Where options are open: placements that the simulator chooses from.
MOST_SIMULATED = 12


# What moves on the simulator may win: plans of parts that are further behind are left as they are.
NEAR_PART = 1.25
# Of the fastest kinds that are looked at without the others.
MOST_KINDS = 8
# On many devices walks also begin at what this search finds with so many evaluations. It is a small
# part of the work, and now and then where the best plans are.
OTHER_SEARCH, OTHER_EVALUATIONS = "genetic", 200_000


class _Part(NamedTuple):
    """A plan on some of the devices, with what was found for it."""

    problem: Problem
    plan: Plan
    budget: Budget


@register("ppo")
class PolicyPlanner:
    """Never worse than `greedy` and the proportional planners: their best is where it starts.

    Its own search has no randomness. What follows on many devices has: a genetic search, and walks.

    Args:
        seed: Of these, and written into plans.
        policy: By default the shipped one for the objective: `DEFAULT_POLICY`, `PRICE_POLICY`.
        effort: Name of an effort, see `heterps_configs.documents.effort.Effort`.

    Attributes:
        search_part: Of a limit in time, what the search takes of what it is given; None: what any
            search does (`heterps.micro_batches.one_size`).

    Raises:
        UnknownNameError: No effort has that name.
    """

    search_part: float | None = None
    name, chooses_options, hands_over_finds = "ppo", True, True

    def __init__(
        self, seed: int = 0, policy: Scorer | None = None, effort: str = DEFAULT_EFFORT
    ) -> None:
        effort_named(effort)
        self.seed, self.effort = seed, effort
        self._policy = policy
        self._shipped: dict[str, Policy] = {}

    @property
    def policy(self) -> Scorer:
        """The policy for short steps; the shipped one is read when it is first needed."""
        return self._policy or self._load(DEFAULT_POLICY)

    def policy_for(self, goal: Goal) -> Scorer:
        """The policy for an objective: the one that was given, else the shipped one."""
        return self._policy or self._load(PRICE_POLICY if goal.is_price else DEFAULT_POLICY)

    def _load(self, name: str) -> Policy:
        if name not in self._shipped:
            self._shipped[name] = Policy.load(name)
        return self._shipped[name]

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan found.

        Raises:
            InfeasibleError: No plan was found that keeps memory and the throughput floor.
        """
        if not problem.strategy.is_plain:
            return self._with_options(problem, budget)
        is_large = is_worth_asking(problem)
        others = self._on_fastest_kinds(problem, budget) if is_large else []
        found = self.chain(problem, budget)
        if is_large and self._goes_on(budget):
            self._begin_elsewhere(problem, budget)
        plans = [found, *self._finished(problem, found, others)]
        best = fastest(problem, plans)
        return found if best is found else best.changed(bound=bound_for(problem, best))

    def _goes_on(self, budget: Budget) -> bool:
        """Whether the simulator goes on from more than one search."""
        return effort_named(self.effort).fastest_kinds > 0 and not budget.is_limited

    def _begin_elsewhere(self, problem: Problem, budget: Budget) -> None:
        """Notes what a search without weights finds; its costs are not compared with others."""
        own = Budget(OTHER_EVALUATIONS)
        with contextlib.suppress(InfeasibleError):
            planner_named(OTHER_SEARCH, self.seed).plan(problem, own)
        for find in own.finds:
            budget.found(find.cost, find.plan, (OTHER_SEARCH, find.view))
        budget.charge(own)

    def _on_fastest_kinds(self, problem: Problem, budget: Budget) -> list[_Part]:
        """Plans on some kinds of devices alone; on the fastest where nothing goes on from them."""
        found = list[_Part]()
        goes_on = self._goes_on(budget)
        for part in on_fastest_kinds(problem, MOST_KINDS if goes_on else 1):
            own = budget.apart(1.0) if goes_on else budget.share(1.0)
            with contextlib.suppress(InfeasibleError):
                found.append(_Part(part, self.chain(part, own), own))
            budget.charge(own)
        return found

    def _finished(self, problem: Problem, best: Plan, others: list[_Part]) -> list[Plan]:
        """Plans of parts, the best of them after moves on the simulator."""
        effort = effort_named(self.effort)
        seconds = [simulated_step_time_s(problem, other.plan) for other in others]
        most_s = NEAR_PART * min([*seconds, simulated_step_time_s(problem, best)])
        plans = [other.plan for other in others]
        for number in sorted(range(len(others)), key=seconds.__getitem__)[: effort.fastest_kinds]:
            part, plan, own = others[number]
            if seconds[number] <= most_s and not own.is_limited:
                plans[number] = best_of_finds(part, plan, own, effort.simulated_stages, walks=True)
        return plans

    def chain(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan found with one device for each stage, by a search over all of them.

        Raises:
            InfeasibleError: No plan was found that keeps memory and the throughput floor.
        """
        return over_views(on_usable_devices(problem), budget, self._answer)

    def _with_options(self, problem: Problem, budget: Budget) -> Plan:
        """The best of what the policy finds, and of even plans that may be as good.

        Some of these fit by the simulator alone: placements count memory with a margin.
        """
        found, known = list[Plan](), budget.known_cost
        with contextlib.suppress(InfeasibleError):
            found = [choose_reduce(problem, over_views(problem, budget, self._answer))]
        is_throughput = problem.job.objective == "throughput"
        is_near = not found
        if found and is_throughput and can_run(problem, found[0]):
            step_time_s = simulated_step_time_s(problem, found[0])
            is_near = step_time_s <= known * NEAR_KNOWN_SUMS
            known = min(known, step_time_s)
        if is_near and allows_plain(problem.strategy) and not budget.is_exhausted:
            found += self._without_options(problem.plain, budget, known)
        if not (found and budget.is_exhausted):
            even = best_uniform(problem, budget, self.seed, known * NEAR_KNOWN_SUMS)
            found += [] if even is None else [choose_reduce(problem, even.plan)]
        if not found:
            is_first = math.isinf(budget.known_cost)
            why = explain_infeasible(problem) if is_first else NONE_NEAR
            raise InfeasibleError(f"{self.name}: {why}")
        found = [plan for plan in found if can_run(problem, plan)] or found
        best = fastest(problem, found).changed(planner=self.name)
        return best.changed(bound=bound_for(problem, best))

    def _without_options(self, problem: Problem, budget: Budget, known: float) -> list[Plan]:
        """The best plan with one device for each stage, where one may be better than what is known.

        With options most small moves change these: where the simulator decides, cuts and replicas
        are moved too little. None where simple placements are far from what is known. With the
        fastest links of all views: which ones a plan has the simulator knows.
        """
        own, view = budget.share(1.0), on_usable_devices(problem).views[-1]
        promised = promised_cost(view, own)
        if math.isinf(promised) or promised > known * NEAR_KNOWN:
            return []
        question = Question.of(view, own, self.seed)
        question = question._replace(start=simple_start(view, question))
        effort = effort_named(self.effort)
        code = learned_code(self.policy_for(question.goal), question, effort)
        codes = [code for code in (code, question.start) if code is not None]
        codes += finalists(view, question)
        plan = self._best_simulated(view, question, codes)
        budget.spend(own.evaluations_used)
        return [] if plan is None else [choose_reduce(problem, plan)]

    def _answer(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan found for one view of the problem."""
        question, code = Question.of(problem, budget, self.seed), None
        if math.isfinite(price_bound(question.tables)[0]):
            question = question._replace(start=simple_start(problem, question))
            policy = self.policy_for(question.goal)
            effort = effort_named(self._effort_for(problem))
            if question.options:
                if is_hopeless(question.cost(question.start), budget.known_cost):
                    raise InfeasibleError(f"{self.name}: {NONE_NEAR}")
                codes = even_codes(question, NUM_EVEN)
                codes += learned_codes(policy, question, effort, MOST_SIMULATED)
                found = self._best_simulated(problem, question, codes)
                if found is not None:
                    return found
                if math.isfinite(budget.known_cost):
                    raise InfeasibleError(f"{self.name}: {NONE_NEAR}")
            else:
                code = learned_code(policy, question, effort)
        return answer(
            problem, question.kernel, code, planner=self.name, seed=self.seed,
            options=question.options,
        )  # fmt: skip

    def _effort_for(self, problem: Problem) -> str:
        """Harder where searching is a small part of what tables and the simulator take."""
        is_plain = problem.strategy.is_plain
        is_large = len(problem.cluster.devices) >= MANY_DEVICES
        return harder(self.effort) if is_plain and is_large else self.effort

    def _best_simulated(
        self, problem: Problem, question: Question, codes: list[Code]
    ) -> Plan | None:
        """The best of some placements and of small moves from them; None where none of them fits.

        Placements that the closed form calls equal differ, simulated, by replicas that wait for
        their turn.
        """
        codes = [code for code in codes if math.isfinite(question.cost(code))]
        if not codes:
            return None
        most_stages = effort_named(self.effort).simulated_stages
        settings = Simulations(self.name, most_stages, least_cost(problem))
        best = best_simulated(problem, question, codes, settings)
        return best.plan if math.isfinite(best.cost) else None
