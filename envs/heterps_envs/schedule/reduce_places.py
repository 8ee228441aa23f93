"""Where the gradient all-reduces and the optimizer step stand in the action lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import kernel
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import (
    BACKWARD,
    BACKWARD_WEIGHT,
    GATHER,
    REDUCE,
    STEP,
    Schedule,
)
from heterps_envs.schedule.plan_arrays import PlanArrays
from heterps_envs.schedule.tied import adding_layers
from heterps_envs.schedule.workload import stage_way


def with_reduces(problem: Problem, plan: Plan, schedule: Schedule, arrays: PlanArrays) -> Schedule:
    """Adds the all-reduces of `Schedule.buckets`, and at the end of each list the optimizer step.

    After it each device gathers what others have stepped of buckets whose state is sharded, in the
    global order of the all-reduces.

    Where they overlap, each all-reduce stands after the last pass that adds to its gradients
    instead of after all passes. On every device they keep one global order: that in which their
    gradients are complete, by the length of the list before that. So no two devices wait for one
    another: of all buckets that are under way, the first one is the next of all its devices.

    Args:
        problem: Says how long the layers of the last pass take.
        plan: What runs; `sums_overlap` says whether all-reduces overlap.
        schedule: Lists without them.
        arrays: `plan_arrays` of the plan.
    """
    overlaps, buckets = plan.sums_overlap, schedule.buckets
    first, stop = schedule.offsets[:-1], schedule.offsets[1:]
    members = _members(schedule)
    ends = np.cumsum([0, *map(len, members)])
    device = np.concatenate([np.empty(0, np.int64), *members])
    at, shares = stop[device], np.ones(len(device))
    order = np.arange(len(buckets))
    if overlaps and len(buckets):
        at, shares = _complete_at(problem, arrays, schedule, ends, device)
        longest = np.maximum.reduceat(at - first[device], ends[:-1])
        order = np.argsort(longest, kind="stable")
    of_bucket = np.repeat(np.arange(len(buckets)), np.diff(ends))
    place = np.empty(len(buckets), np.int64)
    place[order] = np.arange(len(buckets))
    in_order = np.argsort(place[of_bucket], kind="stable")
    device, of_bucket = device[in_order], of_bucket[in_order]
    at, shares = at[in_order], shares[in_order]
    _keep_order(device, at, shares, first.copy())
    gathers = np.array([bucket.is_sharded for bucket in buckets], bool)[of_bucket]
    num_devices = len(schedule.devices)
    kinds = np.full(len(at) + num_devices + int(gathers.sum()), GATHER, np.int8)
    kinds[: len(at)], kinds[len(at) : len(at) + num_devices] = REDUCE, STEP
    bucket_at = np.concatenate([of_bucket, np.full(num_devices, -1), of_bucket[gathers]])
    shares = np.concatenate([shares, np.ones(len(kinds) - len(at))])
    at = np.concatenate([at, stop, stop[device[gathers]]])
    added = np.bincount(np.searchsorted(stop, at), minlength=num_devices)
    old = schedule.kind, schedule.stage, schedule.micro_batch, schedule.peer
    new = np.argsort(at, kind="stable"), at, kinds, bucket_at, shares
    kind, stage, micro_batch, peer, ready_share = _inserted(*old, *new)
    return replace(
        schedule,
        offsets=schedule.offsets + np.concatenate([[0], np.cumsum(added)]),
        kind=kind,
        stage=stage,
        micro_batch=micro_batch,
        peer=peer,
        overlaps_reduce=overlaps,
        ready_share=ready_share,
    )


@kernel
def _inserted(
    kind: Any, stage: Any, micro_batch: Any, peer: Any, order: Any, at: Any, kinds: Any,
    bucket_at: Any, shares: Any,
) -> Any:  # fmt: skip
    """The arrays of a schedule with new actions before the places `at`, in their order."""
    size, row, old = len(kind) + len(at), 0, 0
    new_kind, new_stage = np.empty(size, kind.dtype), np.full(size, -1, stage.dtype)
    new_micro_batch, new_peer = np.empty(size, micro_batch.dtype), np.full(size, -1, peer.dtype)
    ready_share = np.ones(size)
    for number in range(size):
        if row < len(at) and at[order[row]] == old:
            new = order[row]
            new_kind[number], new_micro_batch[number] = kinds[new], bucket_at[new]
            ready_share[number] = shares[new]
            row += 1
            continue
        new_kind[number], new_stage[number] = kind[old], stage[old]
        new_micro_batch[number], new_peer[number] = micro_batch[old], peer[old]
        old += 1
    return new_kind, new_stage, new_micro_batch, new_peer, ready_share


def _members(schedule: Schedule) -> list[Integers]:
    """For each bucket, its devices by their indices; many buckets have the same devices."""
    index = {name: number for number, name in enumerate(schedule.devices)}
    known: dict[tuple[str, ...], Integers] = {}
    for bucket in schedule.buckets:
        if bucket.devices not in known:
            known[bucket.devices] = np.array([index[name] for name in bucket.devices], np.int64)
    return [known[bucket.devices] for bucket in schedule.buckets]


def _complete_at(
    problem: Problem,
    arrays: PlanArrays,
    schedule: Schedule,
    ends: Integers,
    device: Integers,
) -> tuple[Integers, Floats]:
    """Where the gradients of each bucket are complete on each of its devices.

    Args:
        problem: Says how long the layers of the last pass take.
        arrays: `plan_arrays` of the plan.
        schedule: Lists without all-reduces.
        ends: (K + 1,) where the devices of each bucket begin.
        device: (N,) these devices.

    Returns:
        (N,) the index after the last pass that adds to them, and the share of that pass after which
        they are complete.
    """
    num_devices, kind, shape = len(schedule.devices), schedule.kind, arrays.shape
    passes = np.flatnonzero((kind == BACKWARD) | (kind == BACKWARD_WEIGHT))
    last = np.full(len(shape.layers), -1, np.int64)
    last[schedule.stage[passes]] = passes
    by_device = np.argsort(shape.stage_device, kind="stable")
    stages_from = np.searchsorted(shape.stage_device[by_device], np.arange(num_devices + 1))
    is_adding = np.zeros((len(schedule.buckets), problem.profile.num_layers), bool)
    for number, bucket in enumerate(schedule.buckets):
        adding = adding_layers(problem.profile, bucket.layers, bucket.own_only)
        is_adding[number, list(adding)] = True
    at, front, stage = np.empty((3, len(device)), np.int64)
    known = shape.layers, last, by_device, stages_from
    _last_passes(is_adding, ends, device, *known, at, front, stage)
    found = stage >= 0
    # What was put off comes in no order that is known.
    whole = found.copy()
    whole[found] = kind[at[found]] == BACKWARD
    shares = np.ones(len(device))
    ready = _ready_shares(problem, arrays.ways)
    shares[whole] = ready[arrays.way_of[stage[whole]], front[whole]]
    return np.where(found, at + 1, schedule.offsets[1:][device]), shares


@kernel
def _last_passes(
    is_adding: Any, ends: Any, device: Any, layers: Any, last: Any, by_device: Any,
    stages_from: Any, at: Any, front: Any, stage: Any,
) -> None:  # fmt: skip
    """For each device of each bucket, its last pass that adds to it, the stage and first layer."""
    for bucket in range(len(ends) - 1):
        for row in range(ends[bucket], ends[bucket + 1]):
            at[row], stage[row], front[row] = -1, -1, 0
            for place in range(stages_from[device[row]], stages_from[device[row] + 1]):
                own = by_device[place]
                layer = layers[own, 0]
                while layer <= layers[own, 1] and not is_adding[bucket, layer]:
                    layer += 1
                if layer <= layers[own, 1] and last[own] > at[row]:
                    at[row], stage[row], front[row] = last[own], own, layer - layers[own, 0]


@kernel
def _keep_order(device: Any, at: Any, shares: Any, earliest: Any) -> None:
    """One that is moved after others is complete when they are: they decide."""
    for row in range(len(device)):
        if at[row] < earliest[device[row]]:
            shares[row], at[row] = 0.0, earliest[device[row]]
        earliest[device[row]] = at[row]


def _ready_shares(problem: Problem, ways: Sequence[Stage]) -> Floats:
    """(W, n) for each way, the share of a backward pass after which a layer's gradients are there.

    Layers are counted from the stage's first.
    """
    rows = list[Floats]()
    for stage in ways:
        key = _ready_shares, stage_way(problem, stage)
        known = problem.derived.get(key)
        if not isinstance(known, np.ndarray):
            fronts = range(stage.first_layer, stage.last_layer + 1)
            known = np.array([_ready_share(problem, stage, front) for front in fronts])
            problem.derived[key] = known
        rows.append(known)
    table = np.ones((len(rows), max(map(len, rows))))
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


def _ready_share(problem: Problem, stage: Stage, front: int) -> float:
    """Share of a backward pass of a stage after which the gradients of its layers are there.

    From the last layer to `front`.

    A backward pass goes through the layers from the back; layers that are computed again take
    their forward seconds, too.
    """
    kind, own = problem.class_of[stage.devices[0]], problem.for_stage(stage)
    seconds = own.tables.backward_s[:, kind].copy()
    again, away = list(stage.recompute_layers), list(stage.offloaded_layers)
    seconds[again] += own.tables.forward_s[again, kind]
    if away:
        seconds[away] += own.offload.backward_s[away, kind]
    total = seconds[stage.first_layer : stage.last_layer + 1].sum()
    if front == stage.first_layer or total <= 0:
        return 1.0
    return float(seconds[front : stage.last_layer + 1].sum() / total)
