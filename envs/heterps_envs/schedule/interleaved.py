"""Interleaved 1F1B: several stages of a route on one device.

Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM, 2021, section 2.2.

Megatron-LM's order, for p devices of which each has the chunks (stages) 0 .. v - 1: micro-batches
go in groups of p; a device runs forward passes by (group, chunk, micro-batch) and backward passes
by (group, chunk from the last, micro-batch). Device r begins with `2 (p - r - 1) + (v - 1) p`
forward passes, then one forward and one backward pass take turns.

How much that keeps: by that order, stage j of the S = p v on the route runs `2 (S - 1 - j)` forward
passes of its device between a micro-batch's forward and backward pass. Forward passes of one chunk
come in bursts of p out of p v, so of D = 2 (S - 1 - j) + 1 forward passes in a row at most
`p floor(D / (p v)) + min(p, D mod p v)` are of that stage.

Plans of another shape (other device orders, shared stages, routes of unequal depth) keep these
limits and these priorities, but take what is ready. So do plans of that shape whose stages are
unequal or whose last group is not full, where they run faster that way: a fixed order may even
deadlock there. Where no device has several stages of a route, this schedule is 1F1B.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_configs.documents.plan import Pipeline, Plan
from heterps_envs.arrays import Integers


class InterleavedRanks(NamedTuple):
    """Priorities, as in `heterps_envs.schedule.kernels.ListRules`."""

    group: Integers  # (M,) first micro-batch of each micro-batch's group
    chunk: Integers  # (S,)
    num_chunks: int


def is_interleaved(plan: Plan) -> bool:
    """Whether the job asks for it and a device has several stages of one route."""
    if plan.job.schedule != "interleaved":
        return False
    device = _device_of(plan)
    return any(
        len({device[name] for name in pipeline.stages}) < len(pipeline.stages)
        for pipeline in plan.pipelines
    )


def has_full_groups(plan: Plan) -> bool:
    """Whether the micro-batches of every pipeline are a multiple of its devices."""
    device = _device_of(plan)
    return all(
        len(pipeline.micro_batches) % len({device[name] for name in pipeline.stages}) == 0
        for pipeline in plan.pipelines
    )


def most_in_flight(round_trip: int, num_devices: int, num_chunks: int) -> int:
    """Micro-batches that a stage keeps.

    Args:
        round_trip: D, forward passes of its device from a micro-batch's forward pass on to its
            backward pass.
        num_devices: p, of its route: the micro-batches of a group.
        num_chunks: v, stages of the route on its device.
    """
    rounds, rest = divmod(round_trip, num_devices * num_chunks)
    return rounds * num_devices + min(num_devices, rest)


def route_shape(plan: Plan) -> dict[str, tuple[int, int]]:
    """For each stage the most devices of a route through it, and the most of its stages there."""
    device = _device_of(plan)
    shape: dict[str, tuple[int, int]] = {}
    for pipeline in plan.pipelines:
        places = [device[name] for name in pipeline.stages]
        for name, place in zip(pipeline.stages, places, strict=True):
            most_devices, most_chunks = shape.get(name, (0, 0))
            shape[name] = max(most_devices, len(set(places))), max(most_chunks, places.count(place))
    return shape


def interleaved_ranks(plan: Plan) -> InterleavedRanks:
    """Groups of micro-batches and chunks of stages; a shared stage has its largest chunk number."""
    device = _device_of(plan)
    chunk = {stage.name: 0 for stage in plan.stages}
    group = np.zeros(plan.job.num_micro_batches, np.int64)
    for pipeline in plan.pipelines:
        places = [device[name] for name in pipeline.stages]
        for index, name in enumerate(pipeline.stages):
            chunk[name] = max(chunk[name], places[:index].count(places[index]))
        for members in _groups(pipeline, len(set(places))):
            group[members] = members[0]
    ranks = np.array(list(chunk.values()), np.int64)
    return InterleavedRanks(group, ranks, int(ranks.max()) + 1)


def textbook_order(plan: Plan) -> list[Integers] | None:
    """Megatron's passes of every device, coded as in `heterps_envs.schedule.kernels`.

    None where the plan is of another shape: every pipeline has to have devices of its own, and to
    visit all of them equally often, in the same order.
    """
    device, lists = _device_of(plan), dict[str, Integers]()
    index = {stage.name: number for number, stage in enumerate(plan.stages)}
    for pipeline in plan.pipelines:
        places = [device[name] for name in pipeline.stages]
        own = list(dict.fromkeys(places))
        num_chunks, rest = divmod(len(places), len(own))
        if rest or places != own * num_chunks or any(name in lists for name in own):
            return None
        for rank, name in enumerate(own):
            chunks = [index[stage] for stage in pipeline.stages[rank :: len(own)]]
            groups = _groups(pipeline, len(own))
            lists[name] = _device_order(plan, groups, chunks, len(own), rank)
    return [lists[group[0]] for group in plan.device_groups]


def _device_order(
    plan: Plan, groups: list[list[int]], chunks: list[int], num_devices: int, rank: int
) -> Integers:
    """Passes of one device."""
    num_micro_batches, num_stages = plan.job.num_micro_batches, len(plan.stages)

    def passes(kind: int, order: list[int]) -> Integers:
        first = (kind * num_stages + np.array(order)) * num_micro_batches
        return np.concatenate([(first[:, None] + group).ravel() for group in groups])

    forward, backward = passes(0, chunks), passes(1, chunks[::-1])
    warm_up = 2 * (num_devices - rank - 1) + (len(chunks) - 1) * num_devices
    waiting = forward[warm_up:]
    in_turn = np.stack([waiting, backward[: len(waiting)]], axis=1).ravel()
    return np.concatenate([forward[:warm_up], in_turn, backward[len(waiting) :]])


def _groups(pipeline: Pipeline, size: int) -> list[list[int]]:
    members = sorted(pipeline.micro_batches)
    return [members[first : first + size] for first in range(0, len(members), size)]


def _device_of(plan: Plan) -> dict[str, str]:
    return {stage.name: stage.devices[0] for stage in plan.stages}
