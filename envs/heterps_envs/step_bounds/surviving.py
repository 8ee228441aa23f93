"""Sets of stages that the bound cannot rule out: where a plan may be better than a known one.

Of fewer and fewer seconds one set each. The last of them are left where the bound is nearly
reached: if any plan is as fast as the bound says, it is near them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from heterps_envs.problem import Problem
from heterps_envs.step_bounds.needs import Needs, needs_of
from heterps_envs.step_bounds.question import Question
from heterps_envs.step_bounds.whole_plans.stage_search import StageSearch

# Each set is asked for with so many times the seconds of the one before, the first with a little
# less than what is known.
LESS, FIRST_LESS = 0.99, 1 - 1e-6
# Steps of the search times layers times devices, for each set and for all of them.
MOST_WORK, MOST_WORK_IN_ALL = 80_000_000, 320_000_000


class StageSpan(NamedTuple):
    """A stage of a set.

    Attributes:
        first_layer: Its first layer.
        stop: The layer behind its last one.
        device_class: Of its devices.
        degree: How many these are, on one node.
    """

    first_layer: int
    stop: int
    device_class: int
    degree: int


StageSet = tuple[StageSpan, ...]


def surviving_sets(
    problem: Problem, below_s: float, is_over: Callable[[], bool] | None = None
) -> list[StageSet]:
    """Sets of stages that may do a step in less than so many seconds, those first that need least.

    Args:
        problem: What is asked, with its size of micro-batches; not under `interleaved`.
        below_s: Seconds, for example of a known plan.
        is_over: Asked before each search.

    Returns:
        Different sets; none where the bound is as large.
    """
    needs = needs_of(problem)
    question, search = Question(needs, None), StageSearch(problem, needs)
    found, step_s = dict[StageSet, None](), FIRST_LESS * below_s
    each = problem.profile.num_layers * len(problem.cluster.devices)
    left = MOST_WORK_IN_ALL
    while left > each and not (is_over is not None and is_over()):
        if question.is_too_few(step_s):
            break
        count, steps = question.find_stages(step_s, search, min(MOST_WORK, left) // each)
        if count:  # else the search took too long; of fewer seconds less is left to look through
            spans = search.staged.spans[:count].tolist()
            found[tuple(_span(needs, *span) for span in spans)] = None
        left -= steps * each
        step_s *= LESS
    return list(found)[::-1]


def _span(needs: Needs, option: int, first_layer: int, stop: int) -> StageSpan:
    return StageSpan(first_layer, stop, int(needs.class_of[option]), int(needs.degree[option]))
