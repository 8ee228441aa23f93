"""Copies of gradients: where an all-reduce makes one, and how large it is.

The run sums large gradients where they lie. Small ones are copied one after another, and are parts
of that copy from then on: so for a moment, and no longer, they are there twice. Where all-reduces
overlap with passes, that moment lies within the last backward pass that adds to the gradients, when
as many of its layers are done as the gradients need. Others begin at their own action: all of a
zero-bubble schedule, and those that wait for others in front while no gradient of theirs comes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.layer_costs.memory_rule import LARGE_GRADIENT_BYTES, REDUCE_COPY_BYTES
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import BACKWARD, REDUCE, ReduceBucket, Schedule
from heterps_envs.schedule.reduce_buckets import (
    gradient_bytes_in,
    held_problems,
    ways_to_hold,
)
from heterps_envs.schedule.tied import adding_layers


class ReduceCopy(NamedTuple):
    """One copy on one device.

    Attributes:
        action: Index of the action within which it is made.
        layers_done: Where that is a backward pass, how many of its layers are done by then, back
            first; 0 where it is the `REDUCE` itself.
        num_bytes: Of it.
    """

    action: int
    layers_done: int
    num_bytes: float


def reduce_copies(
    problem: Problem, plan: Plan, schedule: Schedule, rank: int | None = None
) -> list[ReduceCopy]:
    """The copies of all devices of a plan.

    Args:
        problem: Says how large gradients are.
        plan: What runs.
        schedule: Its action lists.
        rank: Of tensor-parallel groups, which device; by default one that has most.
    """
    sizes = [
        reduce_copy_bytes(problem, bucket, _held_by(problem, plan, bucket, rank))
        for bucket in schedule.buckets
    ]
    found: list[ReduceCopy] = []
    known: dict[tuple[object, ...], list[int]] = {}
    for in_front, reduces in _reduces_after(schedule).items():
        buckets = schedule.micro_batch[reduces].tolist()
        done = [0] * len(reduces)
        if schedule.overlaps_reduce and schedule.kind[in_front] == BACKWARD:
            stage = plan.stages[schedule.stage[in_front]]
            key = stage.first_layer, stage.last_layer, *buckets
            if key not in known:  # as of hundreds of replicas
                own = [schedule.buckets[number] for number in buckets]
                known[key] = _layers_done(problem, stage, own)
            done = known[key]
        found += [
            ReduceCopy(in_front if layers else at, layers, sizes[number])
            for at, layers, number in zip(reduces, done, buckets, strict=True)
        ]
    return found


def _held_by(problem: Problem, plan: Plan, bucket: ReduceBucket, rank: int | None) -> list[Problem]:
    """The problem as one device of each of a bucket's groups has it; none: as those with most."""
    if rank is None:
        return []
    stages = {stage.devices: stage for stage in plan.stages}
    return [
        problem.keeping(plan.unsplit_layers_on(group)).for_stage(
            stages[group], min(rank, len(group) - 1)
        )
        for group in bucket.groups
    ]


def _reduces_after(schedule: Schedule) -> dict[int, list[int]]:
    """For each action with all-reduces right after it, these."""
    found: dict[int, list[int]] = defaultdict(list)
    index = np.arange(len(schedule.kind))
    in_front = np.maximum.accumulate(np.where(schedule.kind == REDUCE, 0, index))
    for at in np.flatnonzero(schedule.kind == REDUCE).tolist():
        found[int(in_front[at])].append(at)
    return found


def _layers_done(problem: Problem, stage: Stage, buckets: Sequence[ReduceBucket]) -> list[int]:
    """When a backward pass starts the all-reduces after it: one after the other, in their order.

    It looks whether the next one is complete whenever it has a gradient of one of them. If none of
    them is of this stage, it never looks: 0.
    """
    own = [list(_layers_with_gradients(problem, stage, bucket)) for bucket in buckets]
    looks = [stage.last_layer - layer + 1 for layers in own for layer in layers]
    done, found = min(looks, default=0), list[int]()
    for layers in own:
        if layers:
            done = max(done, stage.last_layer - min(layers) + 1)
        found.append(done)
    return found


def _layers_with_gradients(problem: Problem, stage: Stage, bucket: ReduceBucket) -> Iterator[int]:
    adding = adding_layers(problem.profile, bucket.layers, bucket.own_only)
    for layer in stage.layers:
        if layer in adding and problem.profile.layers[layer].trained_parameters:
            yield layer


def reduce_copy_bytes(
    problem: Problem, bucket: ReduceBucket, held: Sequence[Problem] = ()
) -> float:
    """Bytes of the gradients that are there twice for a moment when one bucket's all-reduce begins.

    Large gradients are not copied, others piece by piece; between unlike groups all are.

    Args:
        problem: Of whole layers.
        bucket: The bucket.
        held: The problem as its devices have it; by default as those do that have most.
    """
    is_alike = len(set(ways_to_hold(bucket))) < 2
    small = max(
        gradient_bytes_in(each, bucket) - (_large_bytes(each, bucket) if is_alike else 0)
        for each in held or held_problems(problem, bucket)
    )
    return min(max(small, 0.0), float(REDUCE_COPY_BYTES))


def _large_bytes(problem: Problem, bucket: ReduceBucket) -> float:
    """Bytes of the bucket's gradients that are summed where they lie, as far as they are known."""
    layers, num_bytes = problem.profile.layers, problem.job.weight_bytes_per_parameter
    sizes_of = {layer: list(layers[layer].parameter_sizes) for layer in bucket.layers}
    # A tied parameter is in the bucket of its users, once.
    for owner, users in problem.profile.tied_layers.items():
        shared = layers[users[0]].tied_parameters
        for layer in (owner, *users):
            own = sizes_of.get(layer, [])
            is_known = shared in own
            if is_known:
                own.remove(shared)
            if layer in bucket.tied_only:
                own.clear()
            if is_known and layer == users[0] and layer not in bucket.own_only:
                own.append(shared)
    large = [
        size * num_bytes
        for sizes in sizes_of.values()
        for size in sizes
        if size * num_bytes >= LARGE_GRADIENT_BYTES
    ]
    return float(sum(large))
