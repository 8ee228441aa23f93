"""A plan of blocks of lanes as arrays, for the kernels that find what it takes.

A plan comes as one array of whole numbers: for each block how many lanes it has; for each of them
its micro-batches and its parts; for each part the layer behind it, its column of the tables, how
many devices take turns, and the index of each. Those of a tensor-parallel group count as its first.
"""

from __future__ import annotations

from typing import NamedTuple

from heterps_envs.arrays import Floats, Integers
from heterps_envs.node_links import NodeLinks


class LaneTables(NamedTuple):
    """C columns, each a way to use a device of a class; sums over layers are (C, L + 1).

    Attributes:
        forward_s: Of one device.
        backward_s: The same.
        optimizer_s: The same.
        state_bytes: Held at all times, by each that holds the layers.
        sharded_bytes: The same, of what they can divide.
        kept_bytes: Of each micro-batch in flight.
        gradient_bytes: Of a sum of gradients.
        room_bytes: (C,) of one device.
        output_bytes: (L,) of a message behind each layer.
        links: Between devices.
        is_gpipe: Whether all micro-batches are in flight.
        is_open: Whether as many are in flight as fit, beyond the rule of 1F1B.
    """

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    state_bytes: Floats
    sharded_bytes: Floats
    kept_bytes: Floats
    gradient_bytes: Floats
    room_bytes: Floats
    output_bytes: Floats
    links: NodeLinks
    is_gpipe: bool
    is_open: bool


class Parts(NamedTuple):
    """P parts of lanes, from front to back, lane by lane.

    Attributes:
        first, stop: Its layers, `first .. stop - 1`.
        column: Of the tables.
        replicas: Devices that take turns.
        devices: Where they begin in the plan.
        share: Micro-batches of the busiest of them.
        alike: Replicas of all parts of these layers.
        behind: Replicas of all parts that begin behind it.
        like, next_first: One with these layers, and one of others with its first layer; -1: none.
        forward_s, backward_s: Of a micro-batch.
        in_s, out_s: From the entry of the lane to its beginning, and back.
        behind_s: From its end through the rest of the lane and back to it.
        link_s: Of its messages to the next part, if nothing else is in the way.
        state_bytes: Of one device.
        summed_s: Of its sums of gradients.
        optimizer_s: Of its optimizer step.
        spared_bytes, spared_s: Of state and optimizer step what others have instead.
    """

    first: Integers
    stop: Integers
    column: Integers
    replicas: Integers
    devices: Integers
    share: Integers
    alike: Integers
    behind: Integers
    like: Integers
    next_first: Integers
    forward_s: Floats
    backward_s: Floats
    in_s: Floats
    out_s: Floats
    behind_s: Floats
    link_s: Floats
    state_bytes: Floats
    summed_s: Floats
    optimizer_s: Floats
    spared_bytes: Floats
    spared_s: Floats


class Lanes(NamedTuple):
    """N lanes of B blocks, from front to back, block by block.

    Attributes:
        begin: (N + 1,) the first part of each, and the number of parts.
        at: (N,) a part of each, while layers are gone through.
        weight: (N,) share of the micro-batches.
        entry_s: (N,) of a message to it, on average over the lanes in front.
        out_s: (N,) from its beginning back to the front.
        block: (B + 1,) the first lane of each block, and the number of lanes.
        forward_s, backward_s: (B,) through each block, on average over its lanes.
        message_s: (B,) to each block, on average over its lanes.
    """

    begin: Integers
    at: Integers
    weight: Floats
    entry_s: Floats
    out_s: Floats
    block: Integers
    forward_s: Floats
    backward_s: Floats
    message_s: Floats
