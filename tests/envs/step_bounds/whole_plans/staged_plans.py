"""A plan's own stages, as the search has them."""

from __future__ import annotations

from heterps_configs.documents.plan import Plan
from heterps_envs.options import all_groups
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.needs import Needs, needs_of
from heterps_envs.step_bounds.whole_plans.leaf import survives
from heterps_envs.step_bounds.whole_plans.staged import Staged, find_ways_in

Spans = list[tuple[int, int, int]]


def spans_of(problem: Problem, plan: Plan) -> Spans:
    """The kind of group, the first layer and the one after the last of each stage."""
    groups = all_groups(problem)
    found = [
        (
            groups.index((stage.degree, problem.class_of[stage.devices[0]])),
            stage.first_layer,
            stage.last_layer + 1,
        )
        for stage in plan.stages
    ]
    return sorted(found, key=lambda span: span[1])


def staged_of(problem: Problem, spans: Spans) -> tuple[Needs, Staged]:
    """With ways in."""
    needs = needs_of(problem)
    staged = Staged.of(problem, needs)
    for stage, span in enumerate(spans):
        staged.spans[stage] = span
        find_ways_in(needs, staged, stage)
    return needs, staged


def may_take(problem: Problem, spans: Spans, step_s: float) -> bool:
    """Whether these stages are not proven to take longer."""
    needs, staged = staged_of(problem, spans)
    return bool(survives(needs, staged, step_s, len(spans)))


def least_s(problem: Problem, spans: Spans, most_s: float) -> float:
    """Seconds from which on the stages survive, to a millionth."""
    low, high = 0.0, most_s
    assert may_take(problem, spans, most_s)
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if may_take(problem, spans, middle) else (middle, high)
    return high
