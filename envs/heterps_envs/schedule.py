"""Schedules: the action list of every device for one step, by list scheduling on predicted times.

1F1B: each device, whenever it is free, takes a forward pass if its stage may hold one more
micro-batch, else a backward pass. At the limit that is one backward, one forward in turn, and for
equal stages without replicas it is the textbook order, with S - s forwards on stage s first. (With
the backward pass preferred, a slow stage in front takes its backwards in a row and the stages
behind it run dry.) GPipe: all forwards of a device, then its backwards. Interleaved: see
`heterps_envs.interleaved`. Zero-bubble: see `heterps_envs.zero_bubble`.

The lists are cut from one run on a common clock, every action after all that it waits for: executed
with blocking receives they cannot deadlock.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_configs.plan import Plan
from heterps_envs.actions import Schedule as Schedule
from heterps_envs.interleaved import interleaved_ranks, is_interleaved, textbook_order
from heterps_envs.memory import in_flight_micro_batches
from heterps_envs.plan_arrays import PlanArrays, plan_arrays
from heterps_envs.problem import Problem
from heterps_envs.reduce_buckets import reduce_buckets as reduce_buckets
from heterps_envs.reduce_places import with_reduces
from heterps_envs.schedule_kernels import ListArrays, ListRules, list_schedule
from heterps_envs.workload import Workload as Workload
from heterps_envs.workload import workload as workload
from heterps_envs.zero_bubble import held_micro_batches

# Stages are equal when their seconds differ by less than this share.
EQUAL = 1e-9


def build_schedule(
    problem: Problem, plan: Plan, work: Workload | None = None, *, overlaps_reduce: bool = False
) -> Schedule:
    """The action lists of one step of a plan.

    Messages of one direction between two devices are received in the order in which they are sent.
    Neighbouring stages on one device exchange no message. After its last pass every device reduces
    its gradient buckets, in one global order, and steps.

    Args:
        problem: Where the seconds and bytes come from.
        plan: What runs.
        work: `workload(problem, plan)`, where it is at hand.
        overlaps_reduce: A `reduce` stands where its gradients are complete, and only starts the
            all-reduce (`Schedule.overlaps_reduce`).

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    work = work or workload(problem, plan)
    return schedule_of(problem, plan, plan_arrays(problem, plan, work), overlaps_reduce)


def schedule_of(
    problem: Problem, plan: Plan, arrays: PlanArrays, overlaps_reduce: bool = False
) -> Schedule:
    """The same, where the plan's arrays are at hand."""
    lists = _lists(problem, plan, arrays)
    buckets = reduce_buckets(problem, plan)
    schedule = Schedule(
        devices=plan.devices,
        stages=tuple(stage.name for stage in plan.stages),
        offsets=_list_offsets(plan, arrays),
        kind=lists.kind,
        stage=lists.stage,
        micro_batch=lists.micro_batch,
        peer=lists.peer,
        buckets=buckets,
    )
    return with_reduces(plan, schedule, overlaps_reduce)


def _lists(problem: Problem, plan: Plan, arrays: PlanArrays) -> ListArrays:
    """The passes and messages of every device, of those lists that run fastest."""
    rules = _rules(problem, plan)
    order = textbook_order(plan) if is_interleaved(plan) else None
    if order is None:
        return _run(plan, arrays, rules)[0]
    fixed, fixed_s = _run(plan, arrays, _with_order(plan, arrays, rules, order))
    slowest, fastest = arrays.pass_s[:, :2].max(axis=0), arrays.pass_s[:, :2].min(axis=0)
    if np.isfinite(fixed_s) and (slowest - fastest <= EQUAL * slowest).all():
        return fixed
    free, free_s = _run(plan, arrays, rules)
    return free if free_s < fixed_s else fixed


def _rules(problem: Problem, plan: Plan) -> ListRules:
    room, num_layers = in_flight_micro_batches(plan), plan.num_layers
    held = held_micro_batches(problem, plan)
    names = [stage.name for stage in plan.stages]
    rules = ListRules(
        # The oldest micro-batch goes first, then the stage that is furthest behind.
        group=np.arange(plan.job.num_micro_batches),
        forward_rank=np.array([num_layers - 1 - stage.first_layer for stage in plan.stages]),
        backward_rank=np.array([num_layers - 1 - stage.first_layer for stage in plan.stages]),
        num_ranks=num_layers,
        room=np.array([room[name] for name in names]),
        held=np.array([held[name] for name in names]),
        is_gpipe=plan.job.schedule == "gpipe",
        is_split=plan.job.schedule == "zero-bubble",
        order=np.empty(0, np.int64),
        order_offsets=np.zeros(1, np.int64),
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


def _with_order(
    plan: Plan, arrays: PlanArrays, rules: ListRules, order: list[list[tuple[bool, str, int]]]
) -> ListRules:
    index = {stage.name: number for number, stage in enumerate(plan.stages)}
    num_stages, num_micro_batches = len(index), len(arrays.share)
    codes = [
        (int(is_backward) * num_stages + index[stage]) * num_micro_batches + m
        for passes in order
        for is_backward, stage, m in passes
    ]
    offsets = np.cumsum([0, *map(len, order)])
    return rules._replace(order=np.array(codes, np.int64), order_offsets=offsets)


def _run(plan: Plan, arrays: PlanArrays, rules: ListRules) -> tuple[ListArrays, float]:
    """Lists, and when their last pass ends; inf where they come to no end."""
    offsets = _list_offsets(plan, arrays)
    size = int(offsets[-1])
    lists = ListArrays(
        end=offsets[:-1].copy(),
        kind=np.empty(size, np.int8),
        stage=np.empty(size, np.int32),
        micro_batch=np.empty(size, np.int32),
        peer=np.empty(size, np.int32),
    )
    end_s = list_schedule(arrays, rules, lists)
    is_complete = (lists.end == offsets[1:]).all()
    assert is_complete or len(rules.order), "a schedule without a fixed order deadlocks"
    return lists, end_s if is_complete else float("inf")


def _list_offsets(plan: Plan, arrays: PlanArrays) -> NDArray[np.int64]:
    """(D + 1,) where the passes and messages of each device begin."""
    size = np.zeros(len(arrays.action_s), np.int64)
    passes = 3 if plan.job.schedule == "zero-bubble" else 2
    shares = np.bincount(arrays.pipeline_of)
    for front, behind, first, share in zip(
        arrays.front, arrays.behind, arrays.first_stage, shares, strict=True
    ):
        stage = int(first)
        while stage >= 0:
            device = arrays.stage_device[stage]
            size[device] += passes * share
            for neighbour in (front[stage], behind[stage]):
                if neighbour >= 0 and arrays.stage_device[neighbour] != device:
                    size[device] += 2 * share
            stage = int(behind[stage])
    return np.concatenate([[0], np.cumsum(size)])
