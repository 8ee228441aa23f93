"""What even ways to train cost by a closed form, many at a time.

A stage is ready when all its replicas are: the last micro-batch has come back to it. What comes
back to the stages before it takes longer still. Sums beside backward passes begin with the last
layers; each bucket of them costs its latency.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked, checked_helper


class Groups(NamedTuple):
    """(G,) of groups of devices, those of each degree one after another."""

    kind: Integers
    node: Integers
    usable_bytes: Floats


class Stages(NamedTuple):
    """Stages of equal counts of layers on groups of T classes; bytes are those of one device.

    Those of each degree and number of stages one after another: S of all together.

    Attributes:
        forward_s: (S, T) of a micro-batch.
        backward_s: (S, T) of a micro-batch.
        optimizer_s: (S, T) of a step.
        weight_bytes: (S,) of all parameters.
        gradient_bytes: (S,) that a sum over replicas moves, without those of parameters that other
            stages share.
        shared_bytes: (S,) that a sum over this and a later stage moves.
        shared_with: (S,) that stage's place; where there is none, its own.
        kept_bytes: (2, S, T) of a micro-batch, where all is kept, where all is computed again.
        message_bytes: (S,) that leave the stage.
        num_layers: (S,) of the stage.
    """

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    weight_bytes: Floats
    gradient_bytes: Floats
    shared_bytes: Floats
    shared_with: Integers
    kept_bytes: Floats
    message_bytes: Floats
    num_layers: Integers


class Nets(NamedTuple):
    """(N, N) from node to node; on the diagonal inside a node."""

    latency_s: Floats
    s_per_byte: Floats


class Way(NamedTuple):
    """One way.

    Attributes:
        first_group: Place of its degree's first group.
        first_stage: Place of its first stage.
        num_stages: Of a pipeline.
        replicas: Of each stage.
        across: Groups from one replica of a stage to the next one.
        along: Groups from one stage of a pipeline to the next one.
        again: 1 where all is computed again.
        shares: Parts of the optimizer state.
    """

    first_group: int
    first_stage: int
    num_stages: int
    replicas: int
    across: int
    along: int
    again: int
    shares: int


class Work(NamedTuple):
    """What a job asks of all ways to train.

    Attributes:
        num_micro_batches: Of a step.
        moments_per_weight: Bytes of optimizer state for each byte of weights.
        holds_all: A stage holds all its micro-batches at a time.
        is_equal: All micro-batches have as many samples.
        counts_way: The first micro-batch's way to a stage is time in which it does nothing else.
        bucket_latencies: So many latencies a bucket of gradients takes at least, on each link.
        least_bucket_bytes: And so many bytes it has at least.
        most_bucket_bytes: No more are waited for.
    """

    num_micro_batches: int
    moments_per_weight: float
    holds_all: bool
    is_equal: bool
    counts_way: bool
    bucket_latencies: float
    least_bucket_bytes: float
    most_bucket_bytes: float


@checked
def even_costs(ways: Integers, groups: Groups, stages: Stages, nets: Nets, work: Work) -> Floats:
    """Seconds and bytes of even ways.

    Args:
        ways: (W, 7) place of the first group of its degree; place of its first stage; stages;
            replicas; 1: the stages of a pipeline are neighbours; 1: all is computed again; 1:
            replicas divide the optimizer state.
        groups: Devices.
        stages: What they do.
        nets: Between nodes.
        work: What is asked.

    Returns:
        (W, 4) seconds of a step with gradient sums beside backward passes, and with sums after
        them; seconds below which the simulator says nothing; bytes that some device lacks.
    """
    found, ready_s = np.zeros((len(ways), 4)), np.empty(ways[:, 2].max())
    for index in range(len(ways)):
        first_group, first_stage, num_stages, replicas, by_pipeline, again, shards = ways[index]
        across, along = (num_stages, 1) if by_pipeline else (1, replicas)
        shares = replicas if shards else 1
        way = Way(first_group, first_stage, num_stages, replicas, across, along, again, shares)
        ready_s[:] = 0.0
        found[index, 3] = -np.inf
        for replica in range(replicas):
            least_s, lacks_bytes = _passed(way, replica, groups, stages, nets, work, ready_s)
            found[index, 2] = max(found[index, 2], least_s)
            found[index, 3] = max(found[index, 3], lacks_bytes)
        for stage in range(num_stages):
            early_s, late_s = _summed(way, stage, groups, stages, nets, work)
            found[index, 0] = max(found[index, 0], ready_s[stage] + early_s)
            found[index, 1] = max(found[index, 1], ready_s[stage] + late_s)
    return found


@checked_helper
def _passed(
    way: Way,
    replica: int,
    groups: Groups,
    stages: Stages,
    nets: Nets,
    work: Work,
    ready_s: Floats,
) -> tuple[float, float]:
    """A pipeline's passes: raises when its stages are ready; its least seconds, bytes it lacks."""
    number = -((replica - work.num_micro_batches) // way.replicas)
    passes_s, slowest_s, messages_s, least_s, lacks_bytes = 0.0, 0.0, 0.0, 0.0, -np.inf
    for stage in range(way.num_stages):
        group, place = _group(way, stage, replica), way.first_stage + stage
        kind = groups.kind[group]
        forward_s = stages.forward_s[place, kind]
        pass_s = forward_s + stages.backward_s[place, kind] + way.again * forward_s
        if work.is_equal:
            least_s = max(least_s, number * pass_s + (passes_s if work.counts_way else 0.0))
        else:
            least_s = max(least_s, (number - 1) * pass_s)
        passes_s, slowest_s = passes_s + pass_s, max(slowest_s, pass_s)
        message_s = _message_s(way, stage, group, groups, stages, nets)
        messages_s, slowest_s = messages_s + message_s, max(slowest_s, message_s)
        held = number if work.holds_all else min(number, way.num_stages - stage)
        weights = stages.weight_bytes[place]
        kept = max(weights, held * stages.kept_bytes[way.again, place, kind])
        state = weights * (1 + work.moments_per_weight / way.shares)
        lacks_bytes = max(lacks_bytes, state + kept - groups.usable_bytes[group])
    end_s = passes_s + 2 * messages_s + (number - 1) * slowest_s
    for stage in range(way.num_stages):
        ready_s[stage] = max(ready_s[stage], end_s)
        group = _group(way, stage, replica)
        end_s -= _backward_s(way, stage, group, groups, stages)
        end_s -= _message_s(way, stage, group, groups, stages, nets)
    return least_s, lacks_bytes


@checked_helper
def _summed(
    way: Way, stage: int, groups: Groups, stages: Stages, nets: Nets, work: Work
) -> tuple[float, float]:
    """Seconds from a stage's last backward pass to its step, with sums beside passes and after."""
    place, optimizer_s, backward_s = way.first_stage + stage, 0.0, np.inf
    for replica in range(way.replicas):
        group = _group(way, stage, replica)
        optimizer_s = max(optimizer_s, stages.optimizer_s[place, groups.kind[group]] / way.shares)
        backward_s = min(backward_s, _backward_s(way, stage, group, groups, stages))
    latency_s, s_per_byte = _ring(way, stage, groups, nets)
    last_s, other = optimizer_s, stages.shared_with[place] - way.first_stage
    if other != stage:
        own = _link(nets, groups, _group(way, stage, 0), _group(way, other, 0))
        ring, hops = _ring(way, other, groups, nets), 2 * (2 * way.replicas - 1)
        part_bytes = stages.shared_bytes[place] / (2 * way.replicas)
        last_s += hops * max(latency_s, own[0], ring[0])
        last_s += hops * part_bytes * max(s_per_byte, own[1], ring[1])
    if way.replicas == 1:
        return last_s, last_s
    num_bytes, hops = stages.gradient_bytes[place], 2 * (way.replicas - 1)
    bucket_bytes = work.most_bucket_bytes
    if s_per_byte > 0:
        pays = work.bucket_latencies * way.replicas * latency_s / s_per_byte
        bucket_bytes = min(max(work.least_bucket_bytes, pays), bucket_bytes)
    buckets = max(1.0, min(np.ceil(num_bytes / bucket_bytes), 1.0 * stages.num_layers[place]))
    moved_s = hops * num_bytes / way.replicas * s_per_byte
    all_s = buckets * hops * latency_s + moved_s
    early_s = max(all_s / buckets, all_s - backward_s * (1 - 1 / buckets))
    return early_s + last_s, hops * latency_s + moved_s + last_s


@checked_helper
def _group(way: Way, stage: int, replica: int) -> int:
    """The place of a stage's replica among all groups."""
    return way.first_group + stage * way.along + replica * way.across


@checked_helper
def _ring(way: Way, stage: int, groups: Groups, nets: Nets) -> tuple[float, float]:
    """Latency and seconds per byte of the slowest link from replica to replica."""
    latency_s = s_per_byte = 0.0
    if way.replicas > 1:
        for replica in range(way.replicas):
            following = _group(way, stage, (replica + 1) % way.replicas)
            link = _link(nets, groups, _group(way, stage, replica), following)
            latency_s, s_per_byte = max(latency_s, link[0]), max(s_per_byte, link[1])
    return latency_s, s_per_byte


@checked_helper
def _link(nets: Nets, groups: Groups, one: int, two: int) -> tuple[float, float]:
    """Latency and seconds per byte between two groups."""
    here, there = groups.node[one], groups.node[two]
    return nets.latency_s[here, there], nets.s_per_byte[here, there]


@checked_helper
def _backward_s(way: Way, stage: int, group: int, groups: Groups, stages: Stages) -> float:
    """Of one micro-batch, with what is computed again."""
    place, kind = way.first_stage + stage, groups.kind[group]
    own_s: float = stages.backward_s[place, kind] + way.again * stages.forward_s[place, kind]
    return own_s


@checked_helper
def _message_s(
    way: Way, stage: int, group: int, groups: Groups, stages: Stages, nets: Nets
) -> float:
    """Of one micro-batch to the next stage; none from the last one."""
    if stage + 1 == way.num_stages:
        return 0.0
    latency_s, s_per_byte = _link(nets, groups, group, group + way.along)
    message_s: float = latency_s + stages.message_bytes[way.first_stage + stage] * s_per_byte
    return message_s
