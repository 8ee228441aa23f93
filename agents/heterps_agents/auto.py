"""The planner `auto`: the exact solver where it is quick, else the learned policy and a search."""

from __future__ import annotations

import contextlib
import math
from itertools import count

import numpy as np

from heterps_agents.asymmetric.candidates import NEAR as NEAR_LANES
from heterps_agents.asymmetric.candidates import candidates
from heterps_agents.exact.all_plans import bound_of_all
from heterps_agents.exact.planner import proven_code, proving_tables
from heterps_agents.exact.solve import ExactResult, solve
from heterps_agents.finishing.finalists import (
    SEARCH_EVALUATIONS,
    finalists,
    of_searches,
    over_nodes,
    searched_views,
)
from heterps_agents.finishing.near_plan import best_near
from heterps_agents.finishing.reduce_choice import choose_reduce
from heterps_agents.finishing.shortlist import (
    MARGIN,
    Shortlist,
    Simulations,
    neighbouring_optima,
)
from heterps_agents.finishing.strategies import (
    NEAR_KNOWN_SUMS,
    NONE_NEAR,
    allows_plain,
    best_with_options,
    is_hopeless,
    promised_cost,
    worth_simulating,
)
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import planner_named, register
from heterps_agents.interface.views import fastest
from heterps_agents.learned.efforts import DEFAULT_EFFORT, effort_named, efforts
from heterps_agents.learned.planner import DEFAULT_POLICY, PolicyPlanner
from heterps_agents.learned.search import learned_codes
from heterps_agents.search.annealing import anneal
from heterps_agents.search.starts import simple_codes
from heterps_agents.search.together import searched
from heterps_agents.search.uniform import best_uniform
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.library import shipped
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import (
    bound_by_optimum,
    bound_for,
    certain_share,
    least_cost,
    lower_bound,
)
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import ROUNDING, Goal
from heterps_envs.closed_form.placement import encode, placement_of
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import simulated_step_time_s

# Predicted seconds that the neighbours of the proven problem may take together.
NEIGHBOUR_SECONDS = 0.5
# Of each of the searches that go on from what the policy finds.
POLISH_EVALUATIONS = 50_000
# Of a budget, for plans with options, where others are allowed too.
OPTIONS_PART = 1 / 2
# Of what is left of a budget then, for plans composed of islands of equal devices; how long that
# takes doubles with each island.
COMPOSER, COMPOSED_PART, MOST_ISLANDS = "tangram", 1 / 2, 5
# With options the policy looks where there are at most so many ways to carry out a stage, replicas
# counted: a fraction of a second. So many of its placements are simulated.
LEAST_EFFORT, MOST_CANDIDATES, NUM_LEARNED = "fast", 1500, 6


@register("auto")
class AutoPlanner:
    """The planner of choice.

    Where the exact solver is predicted to be quick: its optimum and those of some neighbouring
    problems. Elsewhere: the shipped policy (annealing, where none is shipped), what the exact
    solver had when it gave up, and the best of them polished. Everywhere greedy, the proportional
    placements, and what the closed form may underrate (`heterps_agents.finishing.finalists`). Of
    these, of small moves from the best, and of pipelines side by side
    (`heterps_agents.asymmetric`) the plan is returned that is best in the simulator.

    Args:
        seed: Of all searches.
        effort: Name of an effort, see `heterps_configs.documents.effort.Effort`: how long the exact
            solver may take, how hard the policy tries, and how much is simulated.
        is_patient: Whether all seconds of a budget are used, with more searches.

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
        chain = self._chain(problem, budget)
        assert chain.predicted_step_time_s is not None, "it was simulated"
        if self.chains_only or chain.predicted_step_time_s > NEAR_LANES * budget.known_cost:
            return chain
        found = candidates(problem, budget, chain, self.seed)
        return found[0].changed(bound=Bound()) if found else chain

    def _chain(self, problem: Problem, budget: Budget) -> Plan:
        """The best chain found, with its bound."""
        if not problem.strategy.is_plain:
            return self._with_options(problem, budget)
        asked = on_usable_devices(problem)
        # Equal nodes apart, where they are few: then every link of a table is right.
        try:
            return self._planned(asked.by_node, asked, budget)
        except InfeasibleError:
            if not asked.merges_nodes or asked.by_node is asked:
                raise
        return self._planned(asked, asked, budget)

    def _with_options(self, problem: Problem, budget: Budget) -> Plan:
        """The best of plans with options, of one without, and of even ones, as far as allowed."""
        settings = Simulations(self.name, effort_named(self.effort).simulated_stages)
        exact_s = effort_named(self.effort).exact_s
        is_plain_allowed = allows_plain(problem.strategy)
        own = budget.share(OPTIONS_PART if is_plain_allowed else 1.0)
        own.known_cost = budget.known_cost
        first, optimum = best_with_options(
            problem, own, self.seed, settings, exact_s, self._learned_codes
        )
        budget.charge(own)
        plans = [first]
        plain, known = problem.plain, budget.known_cost
        is_throughput = problem.job.objective == "throughput"
        if first is not None and is_throughput and can_run(problem, first):
            assert first.predicted_step_time_s is not None, "it was simulated"
            budget.known_cost = min(known, first.predicted_step_time_s)
        if is_plain_allowed and self._may_be_plain(plain, budget):
            with contextlib.suppress(InfeasibleError):
                plans.insert(0, self._chain(plain, budget))
        found = [plan for plan in plans if plan is not None]
        even = best_uniform(problem, budget, self.seed, below=budget.known_cost * NEAR_KNOWN_SUMS)
        budget.known_cost = known
        if even is not None:
            found.append(even.plan.changed(planner=self.name))
        if is_throughput and math.isinf(known):
            found += self._composed(problem, budget)
        if not found:
            least_s = None if optimum is None else optimum.step_time_s
            raise InfeasibleError(_why_none(problem, budget), least_s)
        found = [plan for plan in found if can_run(problem, plan)] or found
        best = fastest(plain, [choose_reduce(plain, plan) for plan in found])
        step_time_s = simulated_step_time_s(plain, best)
        if is_throughput and step_time_s < known and not budget.is_exhausted:
            best, step_time_s = best_near(problem, best, budget)
        best = best.changed(predicted_step_time_s=step_time_s)
        return best.changed(bound=self._bound_with_options(problem, best, optimum, budget))

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

    def _planned(self, problem: Problem, asked: Problem, budget: Budget) -> Plan:
        """The best plan by one view of what was asked, with a bound for all of them."""
        question = Question.of(problem, budget, self.seed)
        kernel, goal = question.kernel, question.goal
        simple = simple_codes(problem, question)
        exact_s = min(effort_named(self.effort).exact_s, budget.seconds_left)
        result = solve(kernel, goal, max_seconds=exact_s, on_better=question.found)
        budget.spend_beside(result.transitions)
        if result.status == "over budget":
            simple += [] if result.incumbent is None else [result.incumbent]
            codes, optimum = self._search(problem, question, simple), None
        else:
            optimum = proven_code(problem, result)
            codes = [optimum, *neighbouring_optima(kernel, goal, budget, NEIGHBOUR_SECONDS)]
            codes += simple
        question.found_all(codes)
        codes += finalists(problem, question)
        question.found_all(codes)
        fitting = [code for code in codes if math.isfinite(question.cost(code))]
        if not fitting:
            raise InfeasibleError(_why_none(problem, budget))
        codes = worth_simulating(question, fitting)
        if not codes:
            raise InfeasibleError(f"auto: {NONE_NEAR}")
        over = self._optimum_over_nodes(asked, budget) if asked.merges_nodes else None
        plan, code = self._best_simulated(problem, asked, question, codes)
        if over is not None:
            budget.spend_beside(over.transitions)
            bound = bound_by_optimum(asked, plan, over.step_time_s, over.price_usd_per_hour)
        elif asked.merges_nodes:
            bound = bound_for(asked, plan)
        elif optimum is not None and certain_share(question.tables, result.step_time_s) < 1:
            price = result.price_usd_per_hour
            bound = bound_by_optimum(problem, plan, result.step_time_s, price)
        elif optimum is not None and code is not None:
            bound = _bound_by(optimum, result.step_time_s, code, question)
        else:
            bound = bound_for(problem, plan)
        return plan.changed(bound=bound)

    def _best_simulated(
        self, problem: Problem, asked: Problem, question: Question, codes: list[Code]
    ) -> tuple[Plan, Code | None]:
        """The best of the codes, of moves from them, and of the problem's other views.

        A plan of these has no code.
        """
        merged, least = problem.over_nodes, least_cost(problem)
        most_stages = effort_named(self.effort).simulated_stages // (1 if merged is None else 2)
        # Where a plan with options is known already, small gains are not worth the time.
        descends = math.isinf(question.budget.known_cost)
        settings = Simulations(self.name, most_stages, least, descends)
        lists = [Shortlist(problem, question, settings)]
        lists[0].consider(codes)
        if merged is not None and not question.budget.is_exhausted:
            other = Question.of(merged, question.budget, question.seed)
            codes = [c for c in over_nodes(merged, other) if math.isfinite(other.cost(c))]
            if codes:
                # More of these codes are alike by the closed form: links are what is unsure.
                more = settings._replace(most_stages=2 * most_stages)
                lists.append(Shortlist(merged, other, more if merged.has_equal_nodes else settings))
                lists[1].consider(codes)
        known = min(entry.least_cost for entry in lists)
        lists += searched_views(asked, problem, question, settings, known)
        if self.is_patient and question.budget.has_time_limit:
            _use_time(lists)
        most = NEAR_KNOWN_SUMS * min(entry.least_cost for entry in lists)
        found = lists[0].best()
        others = [entry.best() for entry in lists[1:] if entry.least_cost <= most]
        best = min(others, key=lambda entry: entry.cost, default=found)
        if best.cost * MARGIN < found.cost:
            return best.plan, None
        return found.plan, found.code

    def _optimum_over_nodes(self, problem: Problem, budget: Budget) -> ExactResult | None:
        """The optimum with the fastest links inside classes, where it is quickly known."""
        kernel = kernel_tables(problem.bounding_tables)
        exact_s = min(effort_named(self.effort).exact_s, budget.seconds_left)
        result = solve(kernel, Goal.of(problem.job), max_seconds=exact_s)
        return None if result.code is None else result

    def _search(self, problem: Problem, question: Question, simple: list[Code]) -> list[Code]:
        """Codes of a polished one and of those that it began with, the polished first."""
        start = question.cheapest(simple)
        codes = [self._learned_code(problem, question, start), *simple]
        polished = searched(question, codes, POLISH_EVALUATIONS)
        return codes if polished is None else [polished, *codes]

    def _learned_code(self, problem: Problem, question: Question, start: Code) -> Code:
        """Code of the shipped policy's plan, or of annealing where no policy is shipped."""
        _, kernel, goal, budget, seed, *_ = question
        if DEFAULT_POLICY not in shipped("policies"):
            return anneal(start, kernel, goal, budget, seed, on_better=question.found)
        try:
            plan = PolicyPlanner(seed, effort=_harder(self.effort)).plan(problem, budget)
        except InfeasibleError:
            return start
        placement = placement_of(problem, plan)
        assert placement is not None, "the policy's plans are bound placements"
        return encode(placement)


def _harder(effort: str) -> str:
    """The next effort, where there is one.

    Where the exact solver gives up, what the policy does in all is a small part of the time that
    the simulator takes for its choice: so it tries harder than it would alone.
    """
    names = list(efforts())
    return names[min(names.index(effort) + 1, len(names) - 1)]


def _why_none(problem: Problem, budget: Budget) -> str:
    """Why there is no plan; where one is known already, nobody asks what else would be missing."""
    is_first = math.isinf(budget.known_cost)
    return f"auto: {explain_infeasible(problem) if is_first else NONE_NEAR}"


def _use_time(lists: list[Shortlist]) -> None:
    """Longer and longer searches with other random numbers, and moves, until the time is over."""
    for number in count(1):
        for entry in lists:
            if entry.question.budget.is_exhausted:
                return
            question = entry.question._replace(seed=entry.question.seed + number)
            codes = of_searches(question, number * SEARCH_EVALUATIONS)
            entry.consider([code for code in codes if math.isfinite(question.cost(code))])


def _bound_by(optimum: Code, step_time_s: float, code: Code, question: Question) -> Bound:
    """How far a plan is from the optimum of the closed form."""
    least = question.cost(optimum)
    if least <= 0:  # nothing takes any time, or costs any: no share of it is a gap
        is_least = question.cost(code) <= 0
        return Bound(step_time_s=step_time_s, gap=0.0, status="proven") if is_least else Bound()
    gap = max(0.0, question.cost(code) / least - 1)
    if question.goal.is_price and gap > ROUNDING:
        # The cheapest plan's step is no bound: a dearer plan may be faster.
        step_time_s = lower_bound(question.tables)
    return Bound(
        step_time_s=step_time_s, gap=gap, status="proven" if gap <= ROUNDING else "bounded"
    )
