"""The compiled half of the exact solver: the sweep over the layers, back to front."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.closed_form.formula import never_helps
from heterps_envs.closed_form.stage_formula import (
    in_flight,
    stage_after_option_s,
    stage_state_bytes,
    stage_work_s,
)
from heterps_envs.compiled import (
    ONE,
    allocating_helper,
    checked,
    uncounted,
    uncounted_helper,
)

_UNLIMITED = 1 << 40
# Labels that differ by less are one: only the rounding of sums sets them apart.
SAME = 1e-12


@uncounted
def total_and_held(k: Any, start: int, stop: int, option: int, replicas: int) -> tuple[int, int]:
    """How many replicas may stand after a stage so that it is of use, and what it has room for.

    Its memory must suffice. And where one replica less has the same share of the micro-batches,
    the last one is there for its own memory and for the stages before it, by the rule of 1F1B;
    with so many replicas after it they hold all of them, it is idle, unless it shares their state.

    Returns:
        At most so many, -1 where it never is of use; and the micro-batches that each of its own
        replicas has room for, 0 where the rule decides
        (`heterps_envs.closed_form.stage_formula.most_in_flight`).
    """
    state_bytes = stage_state_bytes(k, start, stop, option, replicas)
    prefix, memory_bytes = k.activation_prefix_bytes, k.memory_bytes[option]
    activation_bytes = prefix[stop, option] - prefix[start, option]
    share = (k.num_micro_batches + replicas - 1) // replicas
    most, is_shared = _UNLIMITED, k.shards_state[option]
    if (
        replicas > 1
        and not is_shared
        and share == (k.num_micro_batches + replicas - 2) // (replicas - 1)
    ):
        most = k.num_micro_batches - replicas
    if state_bytes + share * activation_bytes <= memory_bytes:
        return most, 0 if k.holds_by_rule else share
    held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, 0)
    if state_bytes + held * activation_bytes > memory_bytes:
        return -1, 0
    while state_bytes + (held + 1) * activation_bytes <= memory_bytes:
        held += 1
    return min(most, (held - 1) * replicas), 0 if k.holds_by_rule else held


@uncounted_helper
def link_s(k: Any, stop: int, kind: int, neighbour: int) -> tuple[float, float]:
    """Latency and transfer seconds of one message over a cut."""
    transfer = k.output_bytes[stop - 1] * k.inverse_bandwidth_s_per_byte[kind, neighbour]
    return k.latency_s[kind, neighbour], transfer


@uncounted_helper
def _insert(
    labels: Any,
    start: int,
    port: int,
    state: int,
    behind_s: float,
    fill_s: float,
    is_narrow: bool,
    unused: int,
) -> int:
    """Adds a label to the set of a state, unless another is as good; returns the next unused."""
    previous, here = 0, labels.first[start, port, state]
    if is_narrow and here > 0:
        if behind_s < labels.behind_s[here]:
            labels.behind_s[here], labels.fill_s[here] = behind_s, fill_s
        return unused
    while here > 0 and labels.behind_s[here] <= behind_s * (1.0 + SAME):
        if labels.fill_s[here] <= fill_s * (1.0 + SAME):
            return unused
        previous, here = here, labels.following[here]
    while here > 0 and labels.fill_s[here] >= fill_s:
        here = labels.following[here]
    labels.behind_s[unused], labels.fill_s[unused] = behind_s, fill_s
    labels.following[unused] = here
    if previous > 0:
        labels.following[previous] = unused
    else:
        labels.first[start, port, state] = unused
    return unused + 1


@uncounted_helper
def _list_states(order: Any, first: Any, states: Any) -> int:
    """Writes the states that have a label at a cut, fewest devices first; returns how many."""
    found = 0
    for state in order:
        for port in range(first.shape[0]):
            if first[port, state] > 0:
                states[found] = state
                found += 1
                break
    return found


@allocating_helper
def _thin(labels: Any, delay_s: Any, stop: int, states: Any, width: int) -> None:
    """Drops all labels of a cut but the most promising ones, one of each state."""
    ports = labels.first.shape[1]
    promise = np.full(ports * len(states), np.inf)
    for row in range(len(states)):
        for port in range(ports):
            label = labels.first[stop, port, states[row]]
            if label > 0:
                total = labels.behind_s[label] + delay_s[stop, port, states[row]]
                promise[ports * row + port] = total
    limit = np.sort(promise)[width - 1] if width < len(promise) else np.inf
    for row in range(len(states)):
        for port in range(ports):
            if promise[ports * row + port] > limit:
                labels.first[stop, port, states[row]] = 0


@uncounted_helper
def _earliest_start(k: Any, space: Any, stop: int, kind: int, replicas: int) -> int:
    """The front-most start of a stage that keeps the limits with nothing behind it."""
    share = (k.num_micro_batches + replicas - 1) // replicas
    start = stop
    while start > 0:
        busy = share * (
            k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start - 1, kind]
        ) + stage_after_option_s(k, start - 1, stop, kind, replicas)
        if (
            busy + space.least_fill_s[start - 1] > space.limit_s
            or busy * replicas * space.option_weight[kind] + space.least_cost[start - 1]
            > space.limit_cost
        ):
            break
        start -= 1
    return start


@uncounted_helper
def _see(k: Any, space: Any, labels: Any, states: Any, stop: int, port: int, seen: Any) -> int:
    """Writes the labels behind a cut as a port sees them, states in order; returns how many.

    Of each state those that no other label beats that is behind no slower a link.
    """
    limit_s = space.limit_s - space.least_fill_s[stop]
    end, kind = 0, space.option_of_port[port]
    device_class = k.class_of_option[kind]
    most = k.device_count[device_class] - k.devices_of_option[kind]
    for state in states:
        if space.used[state, device_class] > most:
            continue
        begin = end
        for neighbour in range(len(space.option_of_port)):
            latency, transfer = link_s(k, stop, kind, space.option_of_port[neighbour])
            message = 2.0 * (latency + transfer)
            label = labels.first[stop, neighbour, state]
            while label > 0:
                rest_s = message + labels.behind_s[label]
                round_trip = message + labels.fill_s[label]
                label = labels.following[label]
                if rest_s > limit_s:
                    break
                beaten = False
                for row in range(begin, end):
                    if seen.behind_s[row] <= rest_s and seen.round_trip_s[row] <= round_trip:
                        other = space.option_of_port[seen.link[row]]
                        other_latency, other_transfer = link_s(k, stop, kind, other)
                        if other_latency <= latency and other_transfer <= transfer:
                            beaten = True
                            break
                if not beaten:
                    seen.state[end], seen.link[end] = state, neighbour
                    seen.behind_s[end], seen.round_trip_s[end] = rest_s, round_trip
                    end += 1
    return end


@uncounted_helper
def _collect(
    k: Any,
    space: Any,
    stop: int,
    kind: int,
    replicas: int,
    count: int,
    seen: Any,
    reached: Any,
) -> int:
    """Picks from the labels seen those that may get a number of replicas; returns how many.

    In `reached`, links stand for the micro-batches in flight, and messages in a row are counted.
    """
    share = (k.num_micro_batches + replicas - 1) // replicas
    device_class = k.class_of_option[kind]
    most = k.device_count[device_class] - replicas * k.devices_of_option[kind]
    limit_s = space.limit_s - space.least_fill_s[stop]
    end = 0
    for row in range(count):
        state = seen.state[row]
        if space.used[state, device_class] > most:
            continue
        latency, transfer = link_s(k, stop, kind, space.option_of_port[seen.link[row]])
        rest_s = max(seen.behind_s[row], 2.0 * latency + (share + 1) * transfer)
        if rest_s <= limit_s:
            reached.state[end], reached.behind_s[end] = state, rest_s
            reached.round_trip_s[end] = seen.round_trip_s[row]
            reached.link[end] = in_flight(
                k.num_micro_batches, k.is_gpipe, replicas, space.totals[state]
            )
            end += 1
    return end


class SweepLimits(NamedTuple):
    """What a sweep may do.

    Attributes:
        width: Keep so many labels of a cut, one of each state: no proof, but quick. 0: keep all.
        max_transitions: Give up there.
        transitions: (1,) counts them.
    """

    width: int
    max_transitions: float
    transitions: Floats


class _Group(NamedTuple):
    """Stages of an option and replicas that end at a cut; the longest begins with `earliest`."""

    stop: int
    kind: int
    replicas: int
    earliest: int


@uncounted_helper
def _extend(
    k: Any,
    space: Any,
    labels: Any,
    group: Any,
    count: int,
    reached: Any,
    limits: Any,
    unused: int,
) -> int:
    """Puts every stage of a group before the reached labels; returns the next unused label."""
    stop, kind, replicas, earliest = group
    share = (k.num_micro_batches + replicas - 1) // replicas
    shift, port = replicas * space.shift[kind], space.port_of_option[kind]
    for start in range(stop - 1, earliest - 1, -1):
        largest, most = total_and_held(k, start, stop, kind, replicas)
        while count > 0 and space.totals[reached.state[count - 1]] > largest:
            count -= 1
        forward = k.forward_prefix_s[stop, kind] - k.forward_prefix_s[start, kind]
        compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        after = stage_after_option_s(k, start, stop, kind, replicas)
        if count == 0:
            break
        limits.transitions[0] += count
        for index in range(count):
            state = reached.state[index] + shift
            room = space.latest_s[start, state] - space.delay_s[start, port, state]
            round_trip = reached.round_trip_s[index]
            fill = compute + round_trip
            rest_s = compute + reached.behind_s[index]
            if rest_s > room or fill > space.most_fill_s[start, port, state]:
                continue
            held = max(most, reached.link[index])
            busy = stage_work_s(forward, compute - forward, round_trip, share, held)
            rest_s = max(rest_s, busy + after)
            if rest_s > room:
                continue
            unused = _insert(labels, start, port, state, rest_s, fill, limits.width > 0, unused)
            if unused == len(labels.fill_s):
                return unused
    return unused


@checked
def sweep(
    k: Any,
    space: Any,
    labels: Any,
    seen: Any,
    reached: Any,
    limits: Any,
) -> bool:
    """Fills the labels from the last layer to the first.

    Args:
        k: `KernelTables`.
        space: `Space`.
        labels: `Labels`, with no label in use.
        seen: `Reached`, scratch for all labels of a cut.
        reached: The same.
        limits: `SweepLimits`; its transitions are counted.

    Returns:
        False where it gave up: too many transitions, or no place for another label.
    """
    states = np.empty(len(space.totals), np.int64)
    return _sweep(k, space, labels, seen, reached, limits, states)


@uncounted_helper
def _sweep(
    k: Any,
    space: Any,
    labels: Any,
    seen: Any,
    reached: Any,
    limits: Any,
    states: Any,
) -> bool:
    unused = ONE
    for stop in range(k.num_layers, 0, -1):
        is_last = stop == k.num_layers
        found = 0 if is_last else _list_states(space.order, labels.first[stop], states)
        if limits.width > 0 and found > 0:
            _thin(labels, space.delay_s, stop, states[:found], limits.width)
        total, port = 1, -1
        for kind in space.by_port:
            if not is_last and space.port_of_option[kind] != port:
                port = space.port_of_option[kind]
                total = _see(k, space, labels, states[:found], stop, port, seen)
            most = k.device_count[k.class_of_option[kind]] // k.devices_of_option[kind]
            for replicas in range(1, most + 1):
                if never_helps(k, kind, replicas):
                    continue
                earliest = _earliest_start(k, space, stop, kind, replicas)
                if earliest == stop:
                    continue
                if is_last:
                    reached.state[0], reached.behind_s[0], reached.round_trip_s[0] = 0, 0.0, 0.0
                    reached.link[0] = in_flight(k.num_micro_batches, k.is_gpipe, replicas, 0)
                    count = 1
                else:
                    count = _collect(k, space, stop, kind, replicas, total, seen, reached)
                group = _Group(stop, kind, replicas, earliest)
                unused = _extend(k, space, labels, group, count, reached, limits, unused)
                if limits.transitions[0] > limits.max_transitions or unused == len(labels.fill_s):
                    return False
    return True
