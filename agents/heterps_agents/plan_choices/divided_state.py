"""Which layers' optimizer state the replicas of a plan divide, to the last digit.

A layer whose state is divided takes less of the optimizer step, and the second half of its sum
comes after that. Its gradients are in buckets apart from others, so that what is divided decides as
well which bucket is the last to leave. Planners divide all layers or none; here each is chosen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from heterps_configs.documents.plan import LayerRange, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Floats
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s
from heterps_envs.step_bounds.whole_plans.sum_choices import Allowance
from heterps_envs.step_bounds.whole_plans.sum_times import least_after
from heterps_envs.step_bounds.whole_plans.summed_layers import (
    Ring,
    SummedLayers,
    ring_among,
    summed_layers,
)

# Plans of more stages gain less by it than it takes.
MOST_STAGES = 64
# Of a plan; the last two kinds of groups may go beyond. They take a fifth of a second.
MOST_CHOICES = 300_000
# Another choice has to be faster by more than sums of seconds lose.
GAIN = 1 - 1e-9


def choose_divided(problem: Problem, plan: Plan) -> Plan:
    """The plan with other layers divided, where that is faster.

    Args:
        problem: What was asked.
        plan: Any plan for it.
    """
    if problem.strategy.shard_state != "auto" or not 1 < len(plan.stages) <= MOST_STAGES:
        return plan
    best_s, allowed = feasible_step_time_s(problem, plan), Allowance(MOST_CHOICES)
    for layers in _held_alike(plan):
        for divided in set(_choices(problem, plan, layers, allowed)):
            every = LayerRange.all_of((plan.sharded_layers - set(layers)) | divided)
            for overlaps in _sums_ways(plan):
                found = plan.changed_unchecked(sharded_state=every, overlaps_reduce=overlaps)
                step_time_s = feasible_step_time_s(problem, found)
                if step_time_s < best_s * GAIN:
                    best_s = step_time_s
                    plan = found.changed_unchecked(predicted_step_time_s=step_time_s)
    return plan


def divided_by_stages(plan: Plan) -> Plan:
    """The plan as planners form it: a stage divides the state of all of its layers or of none."""
    sharded = plan.sharded_layers
    stages = [stage for stage in plan.stages if not sharded.isdisjoint(stage.layers)]
    every = frozenset(layer for stage in stages for layer in stage.layers)
    if every == sharded:
        return plan
    return plan.changed_unchecked(sharded_state=LayerRange.all_of(every))


def _sums_ways(plan: Plan) -> set[bool | None]:
    """Gradient sums as they are, or beside passes."""
    return {plan.overlaps_reduce, True if plan.job.overlaps_reduce is None else None}


def _held_alike(plan: Plan) -> Iterator[range]:
    """Layers in a row whose holders all have just these, where they are several."""
    counts = Counter((stage.first_layer, stage.last_layer) for stage in plan.stages)
    for (first, last), count in sorted(counts.items()):
        others = [o for o in counts if o != (first, last) and o[0] <= last and first <= o[1]]
        if count > 1 and not others:
            yield range(first, last + 1)


def _choices(
    problem: Problem, plan: Plan, layers: range, allowed: Allowance
) -> Iterator[frozenset[int]]:
    """What would be best to divide for each two of the kinds of groups that hold some layers."""
    kinds: dict[tuple[int, int], Stage] = {}
    groups = Counter[tuple[int, int]]()
    for stage in plan.stages:
        if stage.first_layer == layers.start:
            own = problem.class_of[stage.devices[0]], stage.degree
            kinds.setdefault(own, stage)
            groups[own] += 1
    degrees = {degree for _, degree in groups}
    ring = ring_among(problem, groups)
    if ring is None or len(degrees) > 1 or any(stage.uneven_shares for stage in kinds.values()):
        return
    for passing in kinds.values():
        for kind, degree in kinds:
            optimizer_s = problem.at_degree(degree).layer_times.optimizer_s[:, kind]
            backward_s = _backward_s(problem, passing)
            summed = summed_layers(problem, degrees, layers, backward_s, optimizer_s)
            if summed is None or allowed.choices < 0:
                continue
            divided, num_followed = _best_divided(summed, ring)
            allowed.choices -= num_followed
            if divided is not None:
                yield frozenset(layers.start + layer for layer in divided)


@lru_cache(maxsize=64)
def _best_divided(summed: SummedLayers, ring: Ring) -> tuple[frozenset[int] | None, int]:
    """Of these layers, and how many choices were followed; None where these were too many.

    Many plans in turn have the same replicas.
    """
    allowed = Allowance(MOST_CHOICES)
    found = least_after(summed, ring, allowed, divides=True)
    divided = None if found is None or math.isinf(found.after_s) else found.divided
    return divided, MOST_CHOICES - allowed.choices


def _backward_s(problem: Problem, stage: Stage) -> Floats:
    """(L,) of a micro-batch, with what is computed again."""
    kind = problem.class_of[stage.devices[0]]
    times = problem.at_degree(stage.degree).layer_times
    backward_s, again = times.backward_s[:, kind].copy(), list(stage.recompute_layers)
    backward_s[again] += times.forward_s[again, kind]
    return backward_s
