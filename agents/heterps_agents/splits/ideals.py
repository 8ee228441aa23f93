"""Ideals of a graph of groups: the sets that hold every producer of what they hold.

A contiguous split is a chain of ideals from nothing to everything; a device gets the difference of
two neighbours. Ideals are bitsets of 64-bit words. Each ideal without its last group is an ideal
too, so that every one is found once, from there, without looking it up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.splits.convex_groups import ConvexGroups
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked

Words = NDArray[np.uint64]


class IdealTables(NamedTuple):
    """Ideals by accelerator seconds, so that each stands behind all that it contains.

    Attributes:
        words: (I, W) bitsets of groups.
        accelerator_s: (I,) seconds of all groups of the ideal; cpu_s, memory_bytes likewise.
        only_cpu: (I,) how many groups run on no accelerator; only_accelerator likewise.
        cut_s: (I,) seconds of the nets that the ideal cuts.
        cut_start: (I,) first entry of its cut nets in `cut_net` and `cut_pins`.
        cut_end: (I,) behind its last entry.
        cut_net: Nets, ideal by ideal.
        cut_pins: How many groups of that net the ideal holds.
        net_s: (M,) seconds of each net.
    """

    words: Words
    accelerator_s: Floats
    cpu_s: Floats
    memory_bytes: Floats
    only_cpu: Integers
    only_accelerator: Integers
    cut_s: Floats
    cut_start: Integers
    cut_end: Integers
    cut_net: Integers
    cut_pins: Integers
    net_s: Floats


def ideal_tables(groups: ConvexGroups, most: int, linear: bool = False) -> IdealTables | None:
    """All ideals with their sums; None where there are more than `most`.

    Args:
        groups: The groups, in an execution order.
        most: How many ideals are worth having.
        linear: Only those along that order: the prefixes, a chain.
    """
    count = len(groups.cpu_s)
    edges = groups.edges
    if linear:
        places = np.arange(count - 1)
        edges = np.stack([places, places + 1], axis=1)
    needed = _producer_words(count, edges)
    words, parent, last = _enumerate(needed, most)
    if len(words) > most:
        return None
    of_group = (
        groups.accelerator_s,
        groups.cpu_s,
        groups.memory_bytes,
        groups.only_cpu.astype(np.float64),
        groups.only_accelerator.astype(np.float64),
    )
    sums = _sum_up(np.stack(of_group), parent, last)
    cut_s, cut_start, cut_net, cut_pins = _cut_nets(
        groups.net_s, groups.net_start, groups.net_group, parent, last, count
    )
    order = np.lexsort((np.arange(len(words)), sums[0]))
    sums = np.ascontiguousarray(sums[:, order])
    return IdealTables(
        words=words[order],
        accelerator_s=sums[0],
        cpu_s=sums[1],
        memory_bytes=sums[2],
        only_cpu=sums[3].astype(np.int64),
        only_accelerator=sums[4].astype(np.int64),
        cut_s=cut_s[order],
        cut_start=cut_start[order],
        cut_end=cut_start[order + 1],
        cut_net=cut_net,
        cut_pins=cut_pins,
        net_s=groups.net_s,
    )


def groups_of(words: Words, count: int) -> NDArray[np.bool_]:
    """(count,) which groups a bitset holds."""
    places = np.arange(count)
    bits = (words[places // 64] >> (places % 64).astype(np.uint64)) & np.uint64(1)
    return bits.astype(bool)


def _producer_words(count: int, edges: Integers) -> Words:
    """(count, W) bitset of the producers of each group."""
    words = np.zeros((count, (count + 63) // 64), dtype=np.uint64)
    bits = np.uint64(1) << (edges[:, 0] % 64).astype(np.uint64)
    np.bitwise_or.at(words, (edges[:, 1], edges[:, 0] // 64), bits)
    return words


@checked
def _enumerate(needed: Words, most: int) -> tuple[Words, Integers, Integers]:
    """Ideals by number of groups, with the ideal and the group that each came from.

    Stops with one more than `most`.
    """
    count, width = needed.shape
    capacity = 1024
    words = np.zeros((capacity, width), dtype=np.uint64)
    parent = np.zeros(capacity, dtype=np.int64)
    last = np.full(capacity, -1, dtype=np.int64)
    found = 1
    index = 0
    while index < found and found <= most:
        for group in range(last[index] + 1, count):
            ready = True
            for word in range(width):
                if needed[group, word] & ~words[index, word]:
                    ready = False
                    break
            if not ready:
                continue
            if found == capacity:
                capacity *= 2
                more = np.zeros((capacity, width), dtype=np.uint64)
                more[:found] = words
                words = more
                parent = np.concatenate((parent, np.zeros(found, dtype=np.int64)))
                last = np.concatenate((last, np.zeros(found, dtype=np.int64)))
            words[found] = words[index]
            words[found, group // 64] |= np.uint64(1) << np.uint64(group % 64)
            parent[found] = index
            last[found] = group
            found += 1
        index += 1
    return words[:found], parent[:found], last[:found]


@checked
def _sum_up(of_group: Floats, parent: Integers, last: Integers) -> Floats:
    """(R, I) sums of each row over the groups of each ideal.

    Always added in the order of the groups: then a larger ideal never has a smaller sum.
    """
    sums = np.zeros((len(of_group), len(parent)))
    for index in range(1, len(parent)):
        for row in range(len(of_group)):
            sums[row, index] = sums[row, parent[index]] + of_group[row, last[index]]
    return sums


@checked
def _cut_nets(
    net_s: Floats,
    net_start: Integers,
    net_group: Integers,
    parent: Integers,
    last: Integers,
    count: int,
) -> tuple[Floats, Integers, Integers, Integers]:
    """Nets with groups inside and outside of each ideal: from the ideal that it came from."""
    num_nets = len(net_s)
    degree = np.zeros(count + 1, dtype=np.int64)
    for pin in net_group:
        degree[pin + 1] += 1
    start_of = np.cumsum(degree)
    net_of = np.empty(len(net_group), dtype=np.int64)
    filled = start_of.copy()
    for net in range(num_nets):
        for position in range(net_start[net], net_start[net + 1]):
            pin = net_group[position]
            net_of[filled[pin]] = net
            filled[pin] += 1
    cut_s = np.zeros(len(parent))
    cut_start = np.zeros(len(parent) + 1, dtype=np.int64)
    capacity = 1024
    cut_net = np.empty(capacity, dtype=np.int64)
    cut_pins = np.empty(capacity, dtype=np.int64)
    is_touched = np.zeros(num_nets, dtype=np.bool_)
    size = 0
    for index in range(1, len(parent)):
        origin, group = parent[index], last[index]
        touched = net_of[start_of[group] : start_of[group + 1]]
        before = cut_start[origin + 1] - cut_start[origin]
        if size + before + len(touched) > capacity:
            capacity = 2 * capacity + before + len(touched)
            cut_net = np.concatenate((cut_net, np.empty(capacity - len(cut_net), dtype=np.int64)))
            cut_pins = np.concatenate(
                (cut_pins, np.empty(capacity - len(cut_pins), dtype=np.int64))
            )
        is_touched[touched] = True
        for position in range(cut_start[origin], cut_start[origin + 1]):
            net, pins = cut_net[position], cut_pins[position]
            if is_touched[net]:
                is_touched[net] = False
                pins += 1
            if pins < net_start[net + 1] - net_start[net]:
                cut_net[size], cut_pins[size] = net, pins
                cut_s[index] += net_s[net]
                size += 1
        for net in touched:
            if is_touched[net]:
                is_touched[net] = False
                cut_net[size], cut_pins[size] = net, 1
                cut_s[index] += net_s[net]
                size += 1
        cut_start[index + 1] = size
    return cut_s, cut_start, cut_net[:size], cut_pins[:size]
