"""Seconds of summing gradients among so many owners, as prefix sums over layers.

A ring over n devices takes `2 (n - 1) / n * bytes / bandwidth` of its slowest link: on a node with
at most as many devices as it has, else one to another node. What a layer costs after the last
backward pass has gone through it:

    its sum, and its optimizer step, of which each owner has a part where state is sharded;

and what it costs at least, wherever in that pass: either its whole optimizer step (the sum is done
meanwhile), or, with sharded state, a part of the step and the half of the ring that gathers the
layer after it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.step_bounds.near_links import NearLinks


class Sums(NamedTuple):
    """(2, N + 1, L + 1, O) prefix sums over layers; (2, N + 1, T) of each class.

    First index 0: rings that stay on a node where its devices are enough; 1: those that do not.
    Second index: the owners of a layer, from 2 on.

    Attributes:
        sum_s: Sum and optimizer step of layers that sum after their last backward pass.
        rest_s: The least of layers whose sums are done beside that pass.
        own_sum_s, own_rest_s: The same of exactly so many owners.
        wait_s: Latencies of one ring.
        parts: Into which optimizer state is divided at most.
    """

    sum_s: Floats
    rest_s: Floats
    own_sum_s: Floats
    own_rest_s: Floats
    wait_s: Floats
    parts: int


def sums_of(
    gradient_bytes: Floats,
    optimizer_s: Floats,
    class_of: list[int],
    links: NearLinks,
    most: int,
    parts: int,
) -> Sums:
    """The sums of a problem's layers.

    Args:
        gradient_bytes: (L, O) of a device of each kind of group.
        optimizer_s: (L, O) of whole layers.
        class_of: (O,) class of each kind of group.
        links: Of the classes.
        most: Owners that a layer has at most.
        parts: Into which optimizer state is divided at most.
    """
    owners = np.maximum(np.arange(most + 1), 1)[:, None]
    # (2, N + 1, T): on the node of a class there is no ring of more devices than it has.
    is_near = (owners <= links.node_size) & np.array([True, False])[:, None, None]
    s_per_byte = np.where(is_near, links.s_per_byte[0], links.s_per_byte[1])
    latency_s = np.where(is_near, links.ring_latency_s[0], links.ring_latency_s[1])
    ring = 2 * (owners - 1) / owners * s_per_byte
    ring_s = ring[:, :, None, class_of] * gradient_bytes
    # Of so many owners each has such a part; the last row is of more owners, too.
    parts_of = np.minimum(owners, parts)
    parts_of[-1] = parts
    part_s = optimizer_s / parts_of[:, :, None]
    sum_s = ring_s + part_s
    rest_s = np.minimum(optimizer_s, ring_s / 2 + part_s)
    return Sums(
        prefix(_or_more(sum_s)),
        prefix(_or_more(rest_s)),
        prefix(sum_s),
        prefix(rest_s),
        2 * (owners - 1) * latency_s,
        parts,
    )


def _or_more(seconds: Floats) -> Floats:
    """The least of so many owners or more, of (2, N + 1, L, O) seconds by owners."""
    return np.minimum.accumulate(seconds[:, ::-1], axis=1)[:, ::-1]


def prefix(values: Floats) -> Floats:
    """(..., L + 1, O) sums of all rows in front, of (..., L, O)."""
    return np.concatenate([np.zeros_like(values[..., :1, :]), values.cumsum(axis=-2)], axis=-2)
