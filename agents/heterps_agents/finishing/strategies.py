"""Plans with stage options: tensor-parallel groups, recomputing, offloading, sharded state.

The same searches as without options, over more candidates for each stage; what they find, and small
moves from it, is simulated. The exact solver joins where it is quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from heterps_agents.exact.solve import ExactResult, solve
from heterps_agents.finishing.finalists import SEARCH_EVALUATIONS, of_searches
from heterps_agents.finishing.shortlist import Shortlist, Simulations
from heterps_agents.finishing.simulated_costs import Simulated
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.views import PART
from heterps_agents.search.annealing import polish
from heterps_agents.search.even_options import even_codes
from heterps_agents.search.greedy import greedy_code
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import least_cost
from heterps_envs.problem import Problem

POLISH_EVALUATIONS = 10_000
# Placements are simulated that cost at most so many times what is known, by the closed form.
NEAR_KNOWN = 1.2
# And gradient sums are put where they are fastest in those that cost so many times as much at most.
NEAR_KNOWN_SUMS = 1.05
# So many of those that only their sums make slower are simulated.
NUM_PROMISING = 2
# Small moves from them begin where the best, simulated, costs so many times as much at most.
NEAR_MOVES = 1.1
# Searches are begun where simple placements cost at most so many times what is known: by more than
# a third no search has made any better.
NEAR_START = 1.5
# Why a planner has no plan then.
NONE_NEAR = "no placement comes near the plan that is known"
# Even placements that are looked at, and the best of all that are annealed.
NUM_EVEN, NUM_POLISHED = 12, 3
# There are more candidates for each stage than without options.
OPTION_EVALUATIONS = 2 * SEARCH_EVALUATIONS


class Found(NamedTuple):
    """What came of the searches with options.

    Attributes:
        plan: The best in the simulator; None where nothing fits.
        optimum: Of the closed form, where the exact solver finished and there is one view alone.
    """

    plan: Plan | None
    optimum: ExactResult | None = None


def allows_plain(strategy: Strategy) -> bool:
    """Whether a stage may be one device that keeps all."""
    is_alone = not strategy.tensor_parallel or 1 in strategy.tensor_parallel
    return is_alone and strategy.recompute != "full"


def best_with_options(
    problem: Problem,
    budget: Budget,
    seed: int,
    settings: Simulations,
    exact_s: float,
    learned: Callable[[Question], list[Code]],
) -> Found:
    """The plan with options that is best in the simulator, and what is proven of it.

    Args:
        problem: With its strategy.
        budget: What may be spent.
        seed: Of all searches.
        settings: How much is simulated.
        exact_s: Seconds that the exact solver may take.
        learned: What a policy makes of a question that starts with the best of the searches.
    """
    found: list[Simulated] = []
    optimum: ExactResult | None = None
    views = problem.views
    for index, view in enumerate(views):
        if budget.is_exhausted and found:
            break
        own = budget.share(PART if index + 1 < len(views) else 1.0)
        own.known_cost = budget.known_cost
        question = Question.of(view, own, seed)
        codes, result = _codes(question, exact_s)
        if not problem.merges_nodes and result is not None and result.code is not None:
            optimum = result
        fits = any(math.isfinite(question.cost(code)) for code in codes)
        if fits:
            best = _best_simulated(view, question, codes, settings, learned)
            found += [] if best is None else [best]
        budget.charge(own)
        if codes and not fits and math.isfinite(budget.known_cost):
            break  # memory is the same in all views, and there is a plan already
    fitting = [entry for entry in found if entry.found is not None and math.isfinite(entry.cost)]
    if not fitting:
        return Found(None, optimum)
    return Found(min(fitting, key=lambda entry: entry.cost).plan, optimum)


def _best_simulated(
    view: Problem,
    question: Question,
    codes: list[Code],
    settings: Simulations,
    learned: Callable[[Question], list[Code]],
) -> Simulated | None:
    """The best of placements of one view and of moves from them; None where none comes near."""
    known_cost = question.budget.known_cost
    codes = worth_simulating(question, codes)
    if not codes:
        return None
    shortlist = Shortlist(view, question, settings._replace(bound=least_cost(view)))
    shortlist.consider(codes, most=known_cost * NEAR_MOVES)
    start = question.cheapest(codes)
    more = worth_simulating(question, learned(question._replace(start=start)))
    if more and question.cost(more[0]) < question.cost(start):
        shortlist.consider(more, most=known_cost * NEAR_MOVES)
    is_near = shortlist.least_cost <= known_cost * NEAR_KNOWN_SUMS
    return shortlist.best() if is_near or promising(question, codes) else None


def worth_simulating(question: Question, codes: list[Code]) -> list[Code]:
    """Placements that fit and come near what is known, by the closed form.

    Sums of gradients that overlap with passes make a plan faster than its closed form; nothing else
    does. So a few are among them that would be better than what is known if sums took no time.
    """
    fitting = [(question.cost(code), code) for code in codes]
    fitting = [(cost, code) for cost, code in fitting if cost < math.inf]
    most = question.budget.known_cost * NEAR_KNOWN
    near = [code for cost, code in fitting if cost <= most]
    far = {code.tobytes(): code for cost, code in fitting if cost > most}
    return near + promising(question, list(far.values()))


def promising(question: Question, codes: list[Code]) -> list[Code]:
    """Of placements those that cost less than what is known but for their sums, the best first."""
    unsummed = np.zeros_like(question.kernel.gradient_prefix_bytes)
    kernel = question.kernel._replace(gradient_prefix_bytes=unsummed)
    costs = [question.goal.cost(code, kernel) for code in codes]
    ranked = sorted(zip(costs, range(len(codes)), strict=True))
    known = question.budget.known_cost
    return [codes[index] for cost, index in ranked[:NUM_PROMISING] if cost < known]


def promised_cost(problem: Problem, budget: Budget) -> float:
    """What simple placements cost at least, by the closed form; inf where none of them fits.

    With the fastest links of all views; a tenth of a second for hundreds of devices.
    """
    question = Question.of(problem.views[-1], budget)
    even = even_codes(question, 1)
    least = min(map(question.cost, even), default=math.inf)
    return least if math.isfinite(least) else question.cost(greedy_code(question))


def is_hopeless(cost: float, known_cost: float) -> bool:
    """Whether no search makes something better than what is known of such simple placements."""
    return known_cost * NEAR_START < cost < math.inf


def _codes(question: Question, exact_s: float) -> tuple[list[Code], ExactResult | None]:
    """What the searches find, and the best of it polished; none where that is hopeless.

    With what the exact solver says, where it was asked.
    """
    greedy, even = greedy_code(question), even_codes(question, NUM_EVEN)
    least = min(map(question.cost, (greedy, *even)))
    if is_hopeless(least, question.budget.known_cost):
        return [], None
    codes = [greedy, *of_searches(question, OPTION_EVALUATIONS), *even]
    question.found_all(codes)
    found = sorted((code for code in codes if code is not None), key=question.cost)
    polished = [
        polish(code, question.kernel, POLISH_EVALUATIONS, number, question.goal)
        for number, code in enumerate(found[:NUM_POLISHED])
    ]
    question.found_all(polished)
    found = [*sorted(polished, key=question.cost), *found]
    seconds = min(exact_s, question.budget.seconds_left)
    result = solve(question.kernel, question.goal, max_seconds=seconds, on_better=question.found)
    question.budget.spend_beside(result.transitions)
    proven = result.incumbent if result.code is None else result.code
    return (found if proven is None else [proven, *found]), result
