"""The compiled choice of devices for the stages of a placement.

`fleet` is a `heterps_envs.simulator.device_choice.Fleet`. Of a group the first device stands for
all. Of equally fast nodes the one with most room is taken, so that later choices stay together.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np

from heterps_envs.compiled import helper, kernel

# How many nodes the first stage is tried on, and any other one as a whole.
MAX_STARTS = 8
# Columns of `stages`, and of `traffic`: messages of a replica in a step, bytes of each, and bytes
# of gradients that it sends to the next replica at a time.
CLASS, REPLICAS, DEGREE = 0, 1, 2
MESSAGES, MESSAGE_BYTES, GRADIENT_BYTES = 0, 1, 2


@kernel
def choose(
    fleet: Any, stages: Any, traffic: Any, first_node: int, tries_nodes: bool, chosen: Any
) -> float:
    """Chooses front to back; returns seconds (`_seconds`), NaN where there is no room.

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
    total_s, row, before, anywhere = 0.0, 0, np.empty(0, np.int64), -1
    for index in range(len(stages)):
        replicas, degree = stages[index, REPLICAS], stages[index, DEGREE]
        mine, trial = np.zeros((replicas, degree), np.int64), np.zeros((replicas, degree), np.int64)
        nodes = np.full(1, first_node if index == 0 else anywhere)
        if index > 0 and tries_nodes and replicas > 1:
            nodes = _roomy_nodes(fleet, stages, index, used, before)
        best_s = np.nan
        for number in range(len(nodes)):
            _copy(used, other)
            is_only = number > 0
            seconds = _place(
                fleet, stages, traffic, index, other, before, nodes[number], is_only, trial
            )
            if seconds < best_s or (np.isnan(best_s) and not np.isnan(seconds)):
                best_s = seconds
                _copy(other, spent)
                _copy(trial.ravel(), mine.ravel())
        if np.isnan(best_s):
            return np.nan
        total_s += best_s
        _copy(spent, used)
        before = np.empty(replicas, np.int64)
        for replica in range(replicas):
            before[replica] = mine[replica, 0]
            for rank in range(degree):
                chosen[row + replica, rank] = mine[replica, rank]
        row += replicas
    return total_s


@helper
def _copy(values: Any, into: Any) -> None:
    """Assignments to slices take a compiler ten times as long."""
    for index in range(len(values)):
        into[index] = values[index]


@helper
def _roomy_nodes(fleet: Any, stages: Any, index: int, used: Any, before: Any) -> Any:
    """-1 for anywhere, then nodes that hold all replicas of a stage.

    Of equally full ones that equal each other one is as good, but for those of the stage in front.
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
    found, size = np.full(count + 1, -1), 1
    for place in range(count):
        first, is_last = place, True
        for another in range(count):
            is_alike = True
            for column in range(3):
                is_alike = is_alike and keys[another, column] == keys[place, column]
            if is_alike:
                first, is_last = min(first, another), is_last and another <= place
        if is_last:
            found[size] = keys[first, 3]
            size += 1
    return found[:size].copy()


@helper
def _place(
    fleet: Any, stages: Any, traffic: Any, index: int, used: Any, before: Any, node: int,
    is_only: bool, mine: Any,
) -> float:  # fmt: skip
    """Chooses the devices of a stage, one replica after the other; NaN: no node has room for one.

    `node` is where the first replica is, or all of them; -1: anywhere.
    """
    kind, replicas, degree = stages[index, CLASS], stages[index, REPLICAS], stages[index, DEGREE]
    begin, stop = fleet.slots_from[kind], fleet.slots_from[kind + 1]
    has_groups = False
    for row in range(len(stages)):
        has_groups = has_groups or stages[row, DEGREE] > 1
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
        fits = np.ones(1, np.int64)
        if has_groups:
            fits = _leaves_room(fleet, stages, index, used, replica)
        best, best_s, best_free, num_known = -1, 0.0, 0, 0
        for slot in range(begin, stop):
            free = fleet.devices_from[slot + 1] - fleet.devices_from[slot] - used[slot]
            own = fleet.node[slot]
            if free == 0 or (has_groups and fits[free] == 0):
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


@helper
def _in_order(fleet: Any, devices: Any, count: Any) -> Any:
    """The nodes of some devices, in the order of the first of each."""
    found, size = np.empty(len(devices), np.int64), 0
    seen = np.zeros(len(count), np.int64)
    for device in devices:
        node = fleet.node_of[device]
        if seen[node] == 0:
            seen[node] = 1
            found[size] = node
            size += 1
    return found[:size]


@helper
def _seconds(
    fleet: Any, traffic: Any, device: int, peers: Any, groups: Any, near: Any, beside: Any,
    replicas: int,
) -> float:  # fmt: skip
    """Of a device: messages with those in front, gradients beside, and what its host takes."""
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
    # There are as many passes as messages.
    host_s = traffic[MESSAGES] * fleet.pass_s[device] + fleet.step_s[device]
    return float(messages_s + 2 * (replicas - 1) * longest_s + host_s)


@helper
def _transfer_s(fleet: Any, device: int, other: int, num_bytes: float) -> float:
    own, node = fleet.node_of[device], fleet.node_of[other]
    if own == node and fleet.is_directed[own] and device > other:
        return float(fleet.back_latency_s[own] + num_bytes / fleet.back_bandwidth[own])
    return float(fleet.latency_s[own, node] + num_bytes / fleet.bandwidth[own, node])


@helper
def _leaves_room(fleet: Any, stages: Any, index: int, used: Any, replica: int) -> Any:
    """For each number of free devices, whether a group on such a node leaves room for all others.

    That is for the stage's groups after this one, and for those of later stages of the class. The
    largest first, wherever there is room: exact where each degree divides the larger ones.
    """
    kind, degree, largest, most = stages[index, CLASS], stages[index, DEGREE], 1, 0
    for row in range(len(stages)):
        largest = max(largest, stages[row, DEGREE])
    wanted = np.zeros(largest + 1, np.int64)  # groups still to come, by degree
    wanted[degree] = stages[index, REPLICAS] - replica - 1
    for row in range(index + 1, len(stages)):
        if stages[row, CLASS] == kind:
            wanted[stages[row, DEGREE]] += stages[row, REPLICAS]
    begin, stop = fleet.slots_from[kind], fleet.slots_from[kind + 1]
    for slot in range(begin, stop):
        most = max(most, fleet.devices_from[slot + 1] - fleet.devices_from[slot] - used[slot])
    nodes = np.zeros(most + 1, np.int64)  # by the number of free devices
    for slot in range(begin, stop):
        nodes[fleet.devices_from[slot + 1] - fleet.devices_from[slot] - used[slot]] += 1
    found, room = np.zeros(most + 1, np.int64), np.zeros(stop - begin, np.int64)
    for count in range(degree, most + 1):
        if nodes[count] > 0:
            nodes[count] -= 1
            nodes[count - degree] += 1
            found[count] = _fit(nodes, wanted, room)
            nodes[count] += 1
            nodes[count - degree] -= 1
    return found


@helper
def _fit(nodes: Any, wanted: Any, room: Any) -> int:
    """Whether nodes have room for groups, most free devices first, largest groups first."""
    size = 0
    for free in range(len(nodes) - 1, -1, -1):
        for _ in range(nodes[free]):
            room[size] = free
            size += 1
    for degree in range(len(wanted) - 1, 0, -1):
        place = 0
        for _ in range(wanted[degree]):
            while place < size and room[place] < degree:
                place += 1
            if place == size:
                return 0
            room[place] -= degree
    return 1
