"""The chains of `auto` without options: the exact solver, or policy and searches."""

from __future__ import annotations

import math

from heterps_agents.auto.bounds import bound_by, why_none
from heterps_agents.exact.planner import proven_code
from heterps_agents.exact.solve import ExactResult, solve
from heterps_agents.finishing.finalists import (
    SEARCH_EVALUATIONS,
    finalists,
    over_nodes,
    searched_views,
)
from heterps_agents.finishing.shortlist import (
    MARGIN,
    Shortlist,
    Simulations,
    neighbouring_optima,
)
from heterps_agents.finishing.simulated_costs import Simulated
from heterps_agents.finishing.strategies import (
    NEAR_KNOWN_SUMS,
    NEAR_MOVES,
    NONE_NEAR,
    worth_simulating,
)
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.learned.efforts import effort_named, harder
from heterps_agents.learned.planner import DEFAULT_POLICY, PolicyPlanner
from heterps_agents.search.annealing import anneal
from heterps_agents.search.starts import simple_codes
from heterps_agents.search.together import searched
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import shipped
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import bound_by_optimum, bound_for, certain_share, least_cost
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import encode, placement_of
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import is_feasible

# Predicted seconds that the neighbours of the proven problem may take together.
NEIGHBOUR_SECONDS = 0.5
# Of each of the searches that go on from what the policy finds.
POLISH_EVALUATIONS = 50_000


class Chains:
    """Looks for chains of single devices that keep all.

    Args:
        planner: Name that plans carry.
        seed: Of all searches.
        effort: Name of an effort.
        evaluations: Of each of the searches that say what they find.
    """

    def __init__(
        self, planner: str, seed: int, effort: str, evaluations: int = SEARCH_EVALUATIONS
    ) -> None:
        self.name, self.seed, self.effort = planner, seed, effort
        self._evaluations = evaluations

    def best(self, problem: Problem, budget: Budget) -> Plan:
        """The best one found, with its bound.

        Raises:
            InfeasibleError: None was found.
        """
        asked = on_usable_devices(problem)
        # Equal nodes apart, where they are few: then every link of a table is right.
        try:
            return self._planned(asked.by_node, asked, budget)
        except InfeasibleError:
            if not asked.merges_nodes or asked.by_node is asked:
                raise
        return self._planned(asked, asked, budget)

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
        codes += finalists(problem, question, self._evaluations)
        question.found_all(codes)
        fitting = [code for code in codes if math.isfinite(question.cost(code))]
        if not fitting:
            raise InfeasibleError(why_none(problem, budget))
        codes = worth_simulating(question, fitting)
        if not codes:
            raise InfeasibleError(f"{self.name}: {NONE_NEAR}")
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
            bound = bound_by(optimum, result.step_time_s, code, question)
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
        # Where time is limited and a plan with options is known already, other searches win more.
        known_cost, is_hurried = question.budget.known_cost, question.budget.has_time_limit
        descends = math.isinf(known_cost) or not is_hurried
        settings = Simulations(self.name, most_stages, least, descends)
        solves_s = effort_named(self.effort).exact_s
        lists = [Shortlist(problem, question, settings._replace(solves_s=solves_s))]
        lists[0].consider(codes, most=math.inf if is_hurried else NEAR_MOVES * known_cost)
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
        most = NEAR_KNOWN_SUMS * min(entry.least_cost for entry in lists)
        found = lists[0].best()
        others = [entry.best() for entry in lists[1:] if entry.least_cost <= most]
        best = min(others, key=lambda entry: _rank(asked, entry), default=found)
        lacks, cost = _rank(asked, best)
        if (lacks, cost * MARGIN) < _rank(asked, found):
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
            # Where the exact solver gives up, what the policy does is a small part of the time that
            # the simulator takes for its choice: so it tries harder than it would alone.
            plan = PolicyPlanner(seed, effort=harder(self.effort)).chain(problem, budget)
        except InfeasibleError:
            return start
        placement = placement_of(problem, plan)
        assert placement is not None, "the policy's plans are bound placements"
        return encode(placement)


def _rank(problem: Problem, entry: Simulated) -> tuple[bool, float]:
    """What fits as simulated comes first, whatever it costs."""
    return not is_feasible(problem, entry.plan), entry.cost
