"""Layers whose gradients the same replicas sum, and the ring over which they do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.cluster import Device
from heterps_envs.arrays import Floats
from heterps_envs.problem import Problem
from heterps_envs.schedule.reduce_buckets import least_bucket_bytes
from heterps_envs.schedule.tied import tied_share


class Ring(NamedTuple):
    """A ring of replicas.

    Attributes:
        size: How many there are.
        latency_s: The largest on its way; once for each ring in which a device takes its turn.
        s_per_byte: Of its slowest link.
        least_bytes: Of a bucket that leaves early.
    """

    size: int
    latency_s: float
    s_per_byte: float
    least_bytes: float

    def seconds(self, num_bytes: float) -> float:
        """Of one sum."""
        around = 2 * (self.size - 1)
        return around * (self.latency_s + num_bytes / self.size * self.s_per_byte)


class SummedLayers(NamedTuple):
    """K layers in a row, each of which the same replicas have.

    Attributes:
        backward_s: (K,) of the last backward pass.
        optimizer_s: (K,) of layers whose state is whole.
        gradient_bytes: (K,) by which buckets are divided.
        summed_bytes: (K,) that are summed: parameters that several layers use once.
        tied: Pairs of layers, each an owner of parameters and the one that uses them.
    """

    backward_s: Sequence[float]
    optimizer_s: Sequence[float]
    gradient_bytes: Sequence[float]
    summed_bytes: Sequence[float]
    tied: tuple[tuple[int, int], ...] = ()


def summed_layers(
    problem: Problem, degrees: set[int], layers: range, backward_s: Floats, optimizer_s: Floats
) -> SummedLayers | None:
    """Layers in a row, as groups of devices have them.

    Args:
        problem: Of whole layers.
        degrees: Of the groups: those of the smallest have most of each layer.
        layers: Which.
        backward_s: (L,) of all layers.
        optimizer_s: (L,) the same.

    Returns:
        None where parameters are shared with other layers, whose devices sum them, too.
    """
    profile, own = problem.profile, slice(layers.start, layers.stop)
    gradient_bytes = problem.at_degree(min(degrees)).tables.gradient_bytes
    others = (problem.at_degree(degree).tables.gradient_bytes for degree in degrees)
    if any((other > gradient_bytes).any() for other in others):
        return None
    summed_bytes, tied = gradient_bytes.copy(), list[tuple[int, int]]()
    for owner, users in profile.tied_layers.items():
        inside = [layer for layer in (owner, *users) if layer in layers]
        if len(inside) not in (0, len(users) + 1):
            return None
        shares = [gradient_bytes[user] * tied_share(profile, user) for user in users]
        summed_bytes[owner] -= min(max(shares), gradient_bytes[owner])
        summed_bytes[list(users)] -= shares
        summed_bytes[users[0]] += max(shares)
        if inside:
            tied += [(owner - layers.start, user - layers.start) for user in users]
    return SummedLayers(
        backward_s=tuple(backward_s[own].tolist()),
        optimizer_s=tuple(optimizer_s[own].tolist()),
        gradient_bytes=tuple(gradient_bytes[own].tolist()),
        summed_bytes=tuple(summed_bytes[own].tolist()),
        tied=tuple(tied),
    )


def ring_among(problem: Problem, groups: Counter[tuple[int, int]]) -> Ring | None:
    """The ring of any replicas of some kinds.

    Args:
        problem: Whose links they are.
        groups: How many there are of each class and degree.

    Returns:
        None where it depends on which of a class's devices these are.
    """
    needed = Counter[int]()
    for (kind, degree), count in groups.items():
        needed[kind] += degree * count
    pool = [device for kind in sorted(needed) for device in problem.classes[kind].devices]
    ends = _links(problem, pool)
    if ends is None:
        return None
    latency_s, bandwidth = ends
    is_near = np.equal.outer([device.node for device in pool], [device.node for device in pool])
    is_other = ~np.eye(len(pool), dtype=bool)
    if is_near.all():
        used = is_other
    elif _fits_a_node(problem, needed):
        return None
    else:
        # Some link of the ring is one between nodes: those have to be the slowest.
        used = ~is_near
        inside = is_near & is_other
        if (latency_s[inside] > latency_s[used].min()).any():
            return None
        if (bandwidth[inside] < bandwidth[used].max()).any():
            return None
    if np.ptp(latency_s[used]) > 0 or np.ptp(bandwidth[used]) > 0:
        return None
    own_latency_s, own_bandwidth = float(latency_s[used][0]), float(bandwidth[used][0])
    size, degrees = groups.total(), {degree for _, degree in groups}
    least_bytes = least_bucket_bytes(size, own_bandwidth, own_latency_s)
    # Of unlike groups the smaller ones have several parts: see `reduce_buckets.reduce_s`.
    turns = math.lcm(*degrees) // min(degrees)
    return Ring(size, turns * own_latency_s, 1 / own_bandwidth, least_bytes)


def _links(problem: Problem, pool: Sequence[Device]) -> tuple[Floats, Floats] | None:
    """(D, D) latencies and bandwidths between devices; None of a single one."""
    if len(pool) < 2:
        return None
    index = np.array([problem.links.index[device.name] for device in pool], np.int64)
    first, second = np.meshgrid(index, index, indexing="ij")
    return problem.links.by_node.between(first, second)


def _fits_a_node(problem: Problem, needed: Counter[int]) -> bool:
    """Whether some node has as many devices of each class."""
    found = Counter(
        (device.node, kind) for kind in needed for device in problem.classes[kind].devices
    )
    nodes = {node for node, _ in found}
    return any(all(found[node, kind] >= count for kind, count in needed.items()) for node in nodes)
