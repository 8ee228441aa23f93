"""The compiled choice of devices for the stages of a placement.

`fleet` is a `heterps_envs.simulator.device_choice.Fleet`. Of a group the first device stands for
all. Of equally fast nodes the one with most room is taken, so that later choices stay together.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
from numba import njit

from heterps_envs.schedule.event_heap import HELPER, KERNEL

# How many nodes the first stage is tried on, and any other one as a whole.
MAX_STARTS = 8
# Columns of `stages`, and of `traffic`: messages of a replica in a step, bytes of each, and bytes
# of gradients that it sends to the next replica at a time.
CLASS, REPLICAS, DEGREE = 0, 1, 2
MESSAGES, MESSAGE_BYTES, GRADIENT_BYTES = 0, 1, 2


@njit(**KERNEL)
def choose(
    fleet: Any, stages: Any, traffic: Any, first_node: int, tries_nodes: bool, chosen: Any
) -> float:
    """Chooses front to back; returns the seconds of communication, NaN where there is no room.

    Args:
        fleet: The devices.
        stages: (S, 3)
        traffic: (S, 3)
        first_node: Where the very first device is.
        tries_nodes: What one replica after the other takes may end on two nodes where one has room
            for all: those are tried, too.
        chosen: (replicas of all stages, largest degree), written: devices.
    """
    used = np.zeros(len(fleet.node), np.int64)
    spent, other = used.copy(), used.copy()
    total_s, row, before = 0.0, 0, np.empty(0, np.int64)
    for index in range(len(stages)):
        replicas, degree = stages[index, REPLICAS], stages[index, DEGREE]
        mine, trial = np.zeros((replicas, degree), np.int64), np.zeros((replicas, degree), np.int64)
        spent[:] = used
        start = first_node if index == 0 else -1
        best_s = _place(fleet, stages, traffic, index, spent, before, start, False, mine)
        if index > 0 and tries_nodes and replicas > 1:
            for node in _roomy_nodes(fleet, stages, index, used, before):
                other[:] = used
                seconds = _place(fleet, stages, traffic, index, other, before, node, True, trial)
                if seconds < best_s or (np.isnan(best_s) and not np.isnan(seconds)):
                    best_s = seconds
                    mine[:] = trial
                    spent[:] = other
        if np.isnan(best_s):
            return np.nan
        total_s += best_s
        used[:] = spent
        chosen[row : row + replicas, :degree] = mine
        row += replicas
        before = mine[:, 0].copy()
    return total_s


@njit(**HELPER)
def _roomy_nodes(fleet: Any, stages: Any, index: int, used: Any, before: Any) -> Any:
    """Nodes that hold all replicas of a stage; of equally full equal ones one is as good.

    But for those of the stage in front.
    """
    kind, wanted = stages[index, CLASS], stages[index, REPLICAS] * stages[index, DEGREE]
    keys, count = np.zeros((MAX_STARTS, 4), np.int64), 0
    for slot in range(fleet.slots_from[kind], fleet.slots_from[kind + 1]):
        free = fleet.devices_from[slot + 1] - fleet.devices_from[slot] - used[slot]
        if free >= wanted and count < MAX_STARTS:
            node, near = fleet.node[slot], 0
            for device in before:
                near += fleet.node_of[device] == node
            keys[count, 0], keys[count, 1] = fleet.like[node], free
            keys[count, 2], keys[count, 3] = near, node
            count += 1
    found, size = np.empty(count, np.int64), 0
    for place in range(count):
        first, is_last = place, True
        for another in range(count):
            if (keys[another, :3] == keys[place, :3]).all():
                first, is_last = min(first, another), is_last and another <= place
        if is_last:
            found[size] = keys[first, 3]
            size += 1
    return found[:size]


@njit(**HELPER)
def _place(
    fleet: Any, stages: Any, traffic: Any, index: int, used: Any, before: Any, node: int,
    is_only: bool, mine: Any,
) -> float:  # fmt: skip
    """Chooses the devices of a stage, one replica after the other; NaN: no node has room for one.

    `node` is where the first replica is, or all of them; -1: anywhere.
    """
    kind, replicas, degree = stages[index, CLASS], stages[index, REPLICAS], stages[index, DEGREE]
    begin, stop = fleet.slots_from[kind], fleet.slots_from[kind + 1]
    has_groups = (stages[:, DEGREE] > 1).any()
    in_turn = gcd(len(before), replicas)
    near, beside = np.zeros(len(fleet.like), np.int64), np.zeros(len(fleet.like), np.int64)
    known, known_s = np.zeros((stop - begin, 3), np.int64), np.zeros(stop - begin)
    total_s = 0.0
    for replica in range(replicas):
        peers = before[replica % in_turn :: in_turn]
        near[:] = 0
        for device in peers:
            near[fleet.node_of[device]] += 1
        groups = _in_order(fleet, peers, near)
        fits = np.ones(1, np.bool_)
        if has_groups:
            fits = _leaves_room(fleet, stages, index, used, replica)
        best, best_s, best_free, num_known = -1, 0.0, 0, 0
        for slot in range(begin, stop):
            free = fleet.devices_from[slot + 1] - fleet.devices_from[slot] - used[slot]
            own = fleet.node[slot]
            if free == 0 or (has_groups and not fits[free]):
                continue
            if node >= 0 and own != node and (is_only or replica == 0):
                continue
            # Equal nodes with as many of those that it talks to are looked at once.
            row = 0
            while row < num_known and not (
                known[row, 0] == fleet.like[own]
                and known[row, 1] == near[own]
                and known[row, 2] == beside[own]
            ):
                row += 1
            if row == num_known:
                known[row, 0], known[row, 1] = fleet.like[own], near[own]
                known[row, 2] = beside[own]
                device = fleet.devices[fleet.devices_from[slot] + used[slot]]
                others = mine[:replica, 0]
                known_s[row] = _seconds(
                    fleet, traffic[index], device, peers, groups, near, others, replicas
                )
                num_known += 1
            seconds = known_s[row]
            if best < 0 or seconds < best_s or (seconds == best_s and free > best_free):
                best, best_s, best_free = slot, seconds, free
        if best < 0:
            return np.nan
        total_s += best_s
        for rank in range(degree):
            mine[replica, rank] = fleet.devices[fleet.devices_from[best] + used[best] + rank]
        used[best] += degree
        beside[fleet.node[best]] += 1
    return total_s


@njit(**HELPER)
def _in_order(fleet: Any, devices: Any, count: Any) -> Any:
    """The nodes of some devices, in the order of the first of each."""
    found, size = np.empty(len(devices), np.int64), 0
    is_new = count > 0
    for device in devices:
        node = fleet.node_of[device]
        if is_new[node]:
            is_new[node] = False
            found[size] = node
            size += 1
    return found[:size]


@njit(**HELPER)
def _seconds(
    fleet: Any, traffic: Any, device: int, peers: Any, groups: Any, near: Any, beside: Any,
    replicas: int,
) -> float:  # fmt: skip
    """Seconds of communication of a device: messages with those in front, gradients beside."""
    own, messages_s, longest_s = fleet.node_of[device], 0.0, 0.0
    for node in groups:
        if node == own and fleet.is_directed[own]:
            for other in peers:
                if fleet.node_of[other] == own:
                    messages_s += _transfer_s(fleet, device, other, traffic[MESSAGE_BYTES])
        else:
            seconds = fleet.latency_s[own, node]
            seconds += traffic[MESSAGE_BYTES] / fleet.bandwidth[own, node]
            messages_s += near[node] * seconds
    for other in beside:
        longest_s = max(longest_s, _transfer_s(fleet, device, other, traffic[GRADIENT_BYTES]))
    messages_s = traffic[MESSAGES] * messages_s / max(len(peers), 1)
    return float(messages_s + 2 * (replicas - 1) * longest_s)


@njit(**HELPER)
def _transfer_s(fleet: Any, device: int, other: int, num_bytes: float) -> float:
    own, node = fleet.node_of[device], fleet.node_of[other]
    if own == node and fleet.is_directed[own] and device > other:
        return float(fleet.back_latency_s[own] + num_bytes / fleet.back_bandwidth[own])
    return float(fleet.latency_s[own, node] + num_bytes / fleet.bandwidth[own, node])


@njit(**HELPER)
def _leaves_room(fleet: Any, stages: Any, index: int, used: Any, replica: int) -> Any:
    """For each number of free devices, whether a group on such a node leaves room for all others.

    That is for the stage's groups after this one, and for those of later stages of the class. The
    largest first, wherever there is room: exact where each degree divides the larger ones.
    """
    kind, replicas, degree = stages[index, CLASS], stages[index, REPLICAS], stages[index, DEGREE]
    begin, stop = fleet.slots_from[kind], fleet.slots_from[kind + 1]
    free = np.diff(fleet.devices_from)[begin:stop] - used[begin:stop]
    degrees = np.repeat(degree, replicas - replica - 1)
    for later in range(index + 1, len(stages)):
        if stages[later, CLASS] == kind:
            more = np.repeat(stages[later, DEGREE], stages[later, REPLICAS])
            degrees = np.concatenate((degrees, more))
    degrees = np.sort(degrees)[::-1]
    found = np.zeros(free.max() + 1, np.bool_)
    for count in range(degree, len(found)):
        place = 0
        while place < len(free) and free[place] != count:
            place += 1
        if place < len(free):
            room = free.copy()
            room[place] -= degree
            found[count] = _fit(np.sort(room)[::-1], degrees)
    return found


@njit(**HELPER)
def _fit(room: Any, degrees: Any) -> bool:
    """Whether nodes with some free devices, most first, have room for groups, largest first."""
    place = 0
    for number in range(len(degrees)):
        if number == 0 or degrees[number] != degrees[number - 1]:
            place = 0
        while place < len(room) and room[place] < degrees[number]:
            place += 1
        if place == len(room):
            return False
        room[place] -= degrees[number]
    return True
