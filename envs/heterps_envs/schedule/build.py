"""Schedules: the action list of every device for one step, by list scheduling on predicted times.

1F1B: each device, whenever it is free, takes a forward pass if its stage may hold one more
micro-batch, else a backward pass. At the limit that is one backward, one forward in turn, and for
equal stages without replicas it is the textbook order, with S - s forwards on stage s first. (With
the backward pass preferred, a slow stage in front takes its backwards in a row and the stages
behind it run dry.) GPipe: all forwards of a device, then its backwards. Interleaved: see
`heterps_envs.schedule.interleaved`. Zero-bubble: see `heterps_envs.schedule.zero_bubble`.

The lists are cut from one run on a common clock, every action after all that it waits for: executed
with blocking receives they cannot deadlock.
"""

from __future__ import annotations

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Integers
from heterps_envs.problem import Problem
from heterps_envs.schedule.action_lists import ActionLists, action_lists
from heterps_envs.schedule.actions import ReduceBucket, Schedule
from heterps_envs.schedule.in_flight import in_flight_of_stages
from heterps_envs.schedule.interleaved import (
    has_full_groups,
    interleaved_ranks,
    is_interleaved,
    textbook_order,
)
from heterps_envs.schedule.kernels import EAGER, FIXED, GPIPE, SPLIT, ListRules, list_schedule
from heterps_envs.schedule.plan_arrays import PlanArrays, plan_arrays
from heterps_envs.schedule.plan_shape import PlanShape
from heterps_envs.schedule.reduce_buckets import reduce_buckets
from heterps_envs.schedule.reduce_places import with_reduces
from heterps_envs.schedule.zero_bubble import held_of_stages

# Stages are equal when their seconds differ by less than this share.
EQUAL = 1e-9


def build_schedule(problem: Problem, plan: Plan) -> Schedule:
    """The action lists of one step of a plan.

    Messages of one direction between two devices are received in the order in which they are sent.
    Neighbouring stages on one device exchange no message. Every device reduces its gradient
    buckets, in one global order, where they are complete (`Plan.sums_overlap`) or after its
    last pass, and steps.

    Args:
        problem: Where the seconds and bytes come from.
        plan: What runs.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    arrays = plan_arrays(problem, plan)
    buckets = reduce_buckets(problem, plan, arrays.shape)
    return with_sums(problem, plan, arrays, passes_of(problem, plan, arrays), buckets)


def passes_of(problem: Problem, plan: Plan, arrays: PlanArrays) -> ActionLists:
    """The passes and messages of every device; wherever the gradient sums are, they are the same.

    Args:
        problem: Where the seconds and bytes come from.
        plan: What runs.
        arrays: `plan_arrays` of it.
    """
    rules = _rules(problem, plan, arrays)
    return action_lists(arrays, _fastest_order(plan, arrays, rules), rules.offsets)


def with_sums(
    problem: Problem,
    plan: Plan,
    arrays: PlanArrays,
    lists: ActionLists,
    buckets: tuple[ReduceBucket, ...],
) -> Schedule:
    """The schedule of a plan whose passes and messages are at hand, with its gradient sums."""
    shape = arrays.shape
    schedule = Schedule(
        devices=tuple(group[0] for group in shape.groups),
        stages=tuple(stage.name for stage in plan.stages),
        offsets=lists.offsets,
        kind=lists.kind,
        stage=lists.stage,
        micro_batch=lists.micro_batch,
        peer=lists.peer,
        buckets=buckets,
    )
    return with_reduces(problem, plan, schedule, arrays)


def _fastest_order(plan: Plan, arrays: PlanArrays, rules: ListRules) -> Integers:
    """The order of the passes of all devices; of several, that which ends first."""
    textbook = textbook_order(plan) if is_interleaved(plan) else None
    if textbook is None:
        return list_schedule(arrays, rules)[1]
    fixed_rules = rules._replace(mode=FIXED, order=np.concatenate(textbook))
    fixed_s, fixed = list_schedule(arrays, fixed_rules)
    slowest, fastest = arrays.pass_s[:, :2].max(axis=0), arrays.pass_s[:, :2].min(axis=0)
    is_equal = (slowest - fastest <= EQUAL * slowest).all() and np.ptp(arrays.action_s) == 0
    if is_equal and np.isfinite(fixed_s) and has_full_groups(plan):
        return fixed
    free_s, free = list_schedule(arrays, rules)
    return free if free_s < fixed_s else fixed


def _rules(problem: Problem, plan: Plan, arrays: PlanArrays) -> ListRules:
    shape, num_layers = arrays.shape, plan.num_layers
    room = held = in_flight_of_stages(plan, shape)
    if plan.job.schedule == "zero-bubble":
        held = held_of_stages(problem, plan, arrays)
    depth = num_layers - 1 - shape.layers[:, 0]
    mode = {"gpipe": GPIPE, "zero-bubble": SPLIT}.get(plan.job.schedule, EAGER)
    rules = ListRules(
        # The oldest micro-batch goes first, then the stage that is furthest behind.
        group=np.arange(plan.job.num_micro_batches),
        forward_rank=depth,
        backward_rank=depth,
        num_ranks=num_layers,
        room=room,
        held=held,
        mode=mode,
        order=np.empty(0, np.int64),
        offsets=_pass_offsets(shape, 3 if mode == SPLIT else 2),
    )
    if not is_interleaved(plan):
        return rules
    ranks = interleaved_ranks(plan)
    return rules._replace(
        group=ranks.group,
        forward_rank=ranks.chunk,
        backward_rank=ranks.num_chunks - 1 - ranks.chunk,
        num_ranks=ranks.num_chunks,
    )


def _pass_offsets(shape: PlanShape, passes: int) -> Integers:
    """(D + 1,) where the passes of each device begin, with so many for each micro-batch."""
    size = np.zeros(len(shape.groups) + 1, np.int64)
    np.add.at(size, shape.stage_device + 1, passes * shape.routed)
    return np.cumsum(size)
