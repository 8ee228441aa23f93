"""A lower bound of the simulated step of every plan that can be run: `least_executable_s`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial

from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.options import has_unlike_groups, keeps_to
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run
from heterps_envs.step_bounds.needs import needs_of
from heterps_envs.step_bounds.question import Question
from heterps_envs.step_bounds.ranges import units_of
from heterps_envs.step_bounds.single import least_single_s
from heterps_envs.step_bounds.whole_plans.stage_search import StageSearch

# The bound is found to this share of itself.
PRECISION = 1e-3
# As far as it is looked for to put sizes of micro-batches in order, and to begin somewhere.
ROUGH_PRECISION = 2e-2
# Where layers stay on nodes: that is dear, with many layers more so.
ZONE_PRECISION, COARSE_PRECISION, MANY_LAYERS = 4e-3, 1e-2, 64
# Nodes are hardly asked to prove seconds so many times as large as roughly found.
NEAR = 1.25
# So many times what is roughly found is hardly ever too few: of 146 questions about plans of more,
# 3 were answered.
HOPELESS = 1.25
# How much more is tried first there, or less elsewhere: mostly that is enough.
FIRST_STEP = 1e-2
# Nothing is planned for longer steps, or shorter ones.
MOST_S, LEAST_S = 1e12, 1e-12
# Of no more a search goes through sets of stages.
FEW_DEVICES = 16
# A simulated step is a sum with rounding errors.
ROUNDING = 1e-9
# Steps that differ by no more are the same: shares of steps are rounded up by less.
SAME = 1e-8
# An answer takes so many seconds, about, once it has begun: who has fewer need not ask.
ANSWER_S = 0.5


def goes_through_stages(problem: Problem) -> bool:
    """Whether the bound goes through all sets of stages: mostly it is near the best plan then."""
    job, number = problem.job, len(problem.cluster.devices)
    return number <= FEW_DEVICES and job.objective != "price" and job.schedule != "interleaved"


def executable_bound(
    problems: Iterable[Problem],
    plan: Plan,
    step_time_s: float,
    is_over: Callable[[], bool] | None = None,
) -> Bound:
    """How far a plan is, as simulated, from what no plan can be below: proven where it reaches it.

    Nothing is said where the price counts, and of plans that the bound is not about.

    Args:
        problems: What was asked, with each size of micro-batches that a plan might have.
        plan: The answer.
        step_time_s: Of the plan, simulated.
        is_over: Then no search through sets of stages begins, and links between nodes do not count:
            a lower bound is found sooner.
    """
    asked = list(problems)
    is_alone = len(plan.device_groups) == len(plan.stages)
    is_asked = any(each.job.objective != "price" for each in asked)
    keeps = all(
        keeps_to(plan, each.strategy) and can_run(each, plan) and not has_unlike_groups(each, plan)
        for each in asked
    )
    if not (is_asked and is_alone and keeps):
        return Bound()
    least_s = step_time_s * (1 - SAME)
    # What is proven of the size with the least is soon seen of the others.
    for problem in sorted(asked, key=_rough_s):
        least_s = min(least_s, least_executable_s(problem, least_s, is_over))
    if least_s <= 0:
        return Bound()
    gap = step_time_s / least_s - 1
    if gap <= 2 * SAME:
        return Bound(step_time_s=step_time_s, gap=0.0, status="proven")
    return Bound(step_time_s=least_s, gap=gap, status="bounded")


def least_executable_s(
    problem: Problem, most_s: float = math.inf, is_over: Callable[[], bool] | None = None
) -> float:
    """Seconds below which no plan that the strategy allows is simulated; inf where none fits.

    It holds of plans in which a device has one stage, and a group devices of one class, whatever
    their cuts, replicas, routes, micro-batches and numbers in flight; under `interleaved` devices
    have several stages, and the bound is 0.

    Args:
        problem: What is asked, with its size of micro-batches.
        most_s: Where the bound is no less, this is returned: that is quickly seen.
        is_over: As of `executable_bound`.

    Raises:
        HeterpsError: A strategy allows nothing: no layer is split at its degrees.
    """
    if problem.job.schedule == "interleaved":
        return 0.0
    if math.isfinite(most_s) and is_too_few(problem, most_s, is_over):
        return most_s
    question, least_s = _question(problem), _chain_s(problem)
    first = min(max(least_s * (1 + FIRST_STEP), _rough_s(problem)), most_s)
    low = _raised(partial(question.is_too_few, is_over=is_over), least_s, first, most_s, PRECISION)
    if question.has_zones and low < most_s and low < MOST_S:
        first = min(low * (1 + FIRST_STEP), most_s)
        is_long = problem.profile.num_layers > MANY_LAYERS
        precision = COARSE_PRECISION if is_long else ZONE_PRECISION
        in_zones = partial(question.is_too_few_in_zones, is_over=is_over)
        low = _raised(in_zones, low, first, most_s, precision)
    return low if low < MOST_S else math.inf


def may_be_too_few(problem: Problem, step_s: float, times: float = HOPELESS) -> bool:
    """Whether it is worth asking if no plan is simulated in so many seconds: that takes tenths.

    Args:
        problem: What is asked, with its size of micro-batches.
        step_s: The seconds.
        times: What is roughly found, this many times, is the most that is worth it.
    """
    return step_s <= times * _rough_s(problem)


def is_too_few(problem: Problem, step_s: float, is_over: Callable[[], bool] | None = None) -> bool:
    """Whether no plan is simulated in so many seconds: soon said, but not always found.

    Args:
        problem: What is asked, with its size of micro-batches.
        step_s: The seconds.
        is_over: As of `executable_bound`.

    Raises:
        HeterpsError: As `least_executable_s`.
    """
    if problem.job.schedule == "interleaved":
        return False
    question = _question(problem)
    if question.is_too_few(step_s, is_over):
        return True
    chain_s = _chain_s(problem)
    is_near = step_s <= NEAR * max(chain_s, _rough_s(problem)) < math.inf
    return chain_s >= step_s or (is_near and question.is_too_few_in_zones(step_s, is_over))


def are_soon_too_few(asked: Iterable[Problem], step_s: float, is_over: Callable[[], bool]) -> bool:
    """Whether no plan of some problems is simulated in so many seconds, where that is soon said.

    Args:
        asked: What is asked, with several sizes of micro-batches.
        step_s: The seconds.
        is_over: As of `executable_bound`.

    Raises:
        HeterpsError: As `least_executable_s`.
    """
    asked = list(asked)
    are_worth_it = all(may_be_too_few(each, step_s) for each in asked)
    return are_worth_it and all(is_too_few(each, step_s, is_over) for each in asked)


def _question(problem: Problem) -> Question:
    known = problem.derived.get(_question)
    if not isinstance(known, Question):
        problem.derived[_question] = known = _asked_of(problem)
    return known


def _asked_of(problem: Problem) -> Question:
    needs = needs_of(problem)
    is_small = len(problem.cluster.devices) <= FEW_DEVICES
    search = StageSearch(problem, needs) if is_small else None
    return Question(needs, units_of(problem), search)


def _rough_s(problem: Problem) -> float:
    """Near the least, and quickly found."""
    known = problem.derived.get(_rough_s)
    if problem.job.schedule == "interleaved":
        return 0.0
    if not isinstance(known, float):
        rough = _question(problem).in_parts()
        known = _raised(rough.is_too_few, 0.0, rough.shared_s, math.inf, ROUGH_PRECISION)
        problem.derived[_rough_s] = known
    return known


def _chain_s(problem: Problem) -> float:
    """Of one micro-batch the least seconds of a chain; else 0."""
    if problem.job.num_micro_batches > 1 or problem.job.schedule == "zero-bubble":
        return 0.0
    known = problem.derived.get(_chain_s)
    if not isinstance(known, float):
        known = least_single_s(problem, needs_of(problem)) * (1 - ROUNDING / 2)
        problem.derived[_chain_s] = known
    return known


def _raised(
    is_too_few: Callable[[float], bool], low: float, first: float, most_s: float, precision: float
) -> float:
    """Seconds that are too few: near the first ones in ever longer steps, then between limits."""
    high, step = first, 1 + FIRST_STEP
    if is_too_few(high):
        while high < min(most_s, MOST_S):
            low, high, step = high, min(most_s, high * step), min(step * step, 2.0)
            if not is_too_few(high):
                break
        else:
            return high
    else:
        while high / step > max(low, LEAST_S):
            if is_too_few(high / step):
                low = high / step
                break
            high, step = high / step, min(step * step, 2.0)
    while high - low > precision * high:
        middle = (low + high) / 2 if low == 0 else math.sqrt(low * high)
        if is_too_few(middle):
            low = middle
        else:
            high = middle
    return low
