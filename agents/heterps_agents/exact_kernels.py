"""The compiled half of the exact solver: the sweep over the layers, and the way back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from heterps_agents.objective import write_code
from heterps_envs.closed_form import MAX_REPLICAS, in_flight, stage_busy_s

_UNLIMITED = 1 << 40


@njit(cache=True)
def is_dominated(num_micro_batches: int, is_gpipe: bool, replicas: int) -> bool:
    """One replica less is never worse: the same share of micro-batches and no more in flight.

    With shares of three and more, 1F1B can hold less in flight with one replica more.
    """
    if replicas > min(num_micro_batches, MAX_REPLICAS):
        return True
    share = (num_micro_batches + replicas - 1) // replicas
    if replicas == 1 or share != (num_micro_batches + replicas - 2) // (replicas - 1):
        return False
    return is_gpipe or share <= 2


@njit(cache=True)
def _largest_total_behind(
    k: Any, replicas: int, state_bytes: float, activation_bytes: float, memory_bytes: float
) -> int:
    """How many devices may stand behind a stage so that its memory suffices; -1: it never does."""
    share = (k.num_micro_batches + replicas - 1) // replicas
    if state_bytes + share * activation_bytes <= memory_bytes:
        return _UNLIMITED
    held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, 0)
    if state_bytes + held * activation_bytes > memory_bytes:
        return -1
    while state_bytes + (held + 1) * activation_bytes <= memory_bytes:
        held += 1
    return (held - 1) * replicas


@njit(cache=True, inline="always")
def _busy_s(k: Any, start: int, stop: int, kind: int, replicas: int) -> float:
    return stage_busy_s(
        k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind],
        k.gradient_prefix_bytes[stop] - k.gradient_prefix_bytes[start],
        k.optimizer_prefix_s[stop, kind] - k.optimizer_prefix_s[start, kind],
        replicas,
        k.num_micro_batches,
        k.latency_s[kind, kind],
        k.inverse_bandwidth_s_per_byte[kind, kind],
    )


@njit(cache=True, inline="always")
def _through_link_s(transfer_s: float, latency_s: float, share: int, behind_s: float) -> float:
    """`behind_stage_s` without the stage's own compute and busy seconds."""
    longest: float = max(2.0 * transfer_s + behind_s, (share + 1) * transfer_s) + 2.0 * latency_s
    return longest


@njit(cache=True)
def _list_states(order: Any, limit_s: float, values: Any, states: Any) -> int:
    """Writes the states behind a cut that can still end under the limit, fewest devices first.

    Args:
        order: All states by their number of devices.
        limit_s: Largest value that is of use.
        values: (T, states) at the cut.
        states: Where to write.

    Returns:
        How many there are.
    """
    count = 0
    for state in order:
        for kind in range(values.shape[0]):
            if values[kind, state] <= limit_s:
                states[count] = state
                count += 1
                break
    return count


@njit(cache=True)
def _collect(
    k: Any,
    used: Any,
    states: Any,
    stop: int,
    kind: int,
    replicas: int,
    limit_s: float,
    values: Any,
    reached: Any,
    reached_s: Any,
) -> int:
    """The states behind a cut that may get a stage of a class, in the order of `states`.

    Writes them to `reached`, and to `reached_s` their value seen through the best link.
    """
    share = (k.num_micro_batches + replicas - 1) // replicas
    transfer_s = k.output_bytes[stop - 1] * k.inverse_bandwidth_s_per_byte[kind]
    latency_s = k.latency_s[kind]
    most = k.device_count[kind] - replicas
    count = 0
    for state in states:
        if used[state, kind] > most:
            continue
        best = np.inf
        for neighbour in range(k.num_classes):
            best = min(
                best,
                _through_link_s(
                    transfer_s[neighbour], latency_s[neighbour], share, values[neighbour, state]
                ),
            )
        if best <= limit_s:
            reached[count], reached_s[count] = state, best
            count += 1
    return count


@njit(cache=True)
def _extend(
    k: Any,
    totals: Any,
    stop: int,
    kind: int,
    replicas: int,
    shift: int,
    count: int,
    reached: Any,
    reached_s: Any,
    least_fill_s: Any,
    limit_s: float,
    value: Any,
) -> int:
    """Puts every stage of a class and replicas that ends at `stop` before the reached states."""
    transitions = 0
    for start in range(stop - 1, -1, -1):
        state_bytes = k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]
        activation_bytes = k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
        largest = _largest_total_behind(
            k, replicas, state_bytes, activation_bytes, k.memory_bytes[kind]
        )
        while count > 0 and totals[reached[count - 1]] > largest:
            count -= 1
        busy = _busy_s(k, start, stop, kind, replicas)
        if count == 0 or busy + least_fill_s[start] > limit_s:
            break
        compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        row = value[start, kind]
        for index in range(count):
            behind_s = max(busy, compute + reached_s[index])
            state = reached[index] + shift
            if behind_s < row[state]:
                row[state] = behind_s
        transitions += count
    return transitions


@njit(cache=True)
def sweep(
    k: Any,
    used: Any,
    strides: Any,
    totals: Any,
    order: Any,
    least_fill_s: Any,
    limit_s: float,
    max_replicas: int,
    value: Any,
) -> int:
    """Fills `value` (L, T, states) from the last layer to the first; returns the transitions."""
    reached, reached_s = np.empty(len(totals), np.int64), np.empty(len(totals))
    states = np.empty(len(totals), np.int64)
    transitions = 0
    for stop in range(k.num_layers, 0, -1):
        limit_here_s = limit_s - least_fill_s[stop]
        is_last = stop == k.num_layers
        values = value[0] if is_last else value[stop]
        num_states = 0 if is_last else _list_states(order, limit_here_s, values, states)
        for kind in range(k.num_classes):
            for replicas in range(1, min(k.device_count[kind], max_replicas) + 1):
                if is_dominated(k.num_micro_batches, k.is_gpipe, replicas):
                    continue
                if is_last:
                    reached[0], reached_s[0], count = 0, 0.0, 1
                else:
                    count = _collect(
                        k, used, states[:num_states], stop, kind, replicas, limit_here_s,
                        values, reached, reached_s,
                    )  # fmt: skip
                transitions += _extend(
                    k, totals, stop, kind, replicas, replicas * strides[kind], count,
                    reached, reached_s, least_fill_s, limit_s, value,
                )  # fmt: skip
    return transitions


@njit(cache=True)
def trace_back(
    k: Any,
    used: Any,
    strides: Any,
    totals: Any,
    value: Any,
    kind: int,
    state: int,
    code: Any,
) -> bool:
    """Writes the code of the placement that reaches a state of layer 0.

    Searching each stage again is cheaper than storing a choice for every state.
    """
    stages = np.empty((k.num_layers, 3), np.int64)
    start, count = 0, 0
    while start < k.num_layers:
        stop, replicas, neighbour = _front_stage(
            k, used, strides, totals, value, start, kind, state
        )
        if stop < 0:
            return False
        stages[count, 0], stages[count, 1], stages[count, 2] = stop, kind, replicas
        count += 1
        state -= replicas * strides[kind]
        start, kind = stop, neighbour
    write_code(stages, count, code)
    return True


@njit(cache=True)
def _front_stage(
    k: Any, used: Any, strides: Any, totals: Any, value: Any, start: int, kind: int, state: int
) -> tuple[int, int, int]:
    """(stop, replicas, class behind) of a front stage that reaches the value of a state."""
    target_s = value[start, kind, state] * (1 + 1e-12)
    for stop in range(start + 1, k.num_layers + 1):
        state_bytes = k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]
        activation_bytes = k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
        compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        for replicas in range(1, used[state, kind] + 1):
            behind = state - replicas * strides[kind]
            largest = _largest_total_behind(
                k, replicas, state_bytes, activation_bytes, k.memory_bytes[kind]
            )
            busy = _busy_s(k, start, stop, kind, replicas)
            if totals[behind] > largest or busy > target_s:
                continue
            if stop == k.num_layers:
                if behind == 0:
                    return stop, replicas, kind
                continue
            for neighbour in range(k.num_classes):
                link_s = _through_link_s(
                    k.output_bytes[stop - 1] * k.inverse_bandwidth_s_per_byte[kind, neighbour],
                    k.latency_s[kind, neighbour],
                    (k.num_micro_batches + replicas - 1) // replicas,
                    value[stop, neighbour, behind],
                )
                if compute + link_s <= target_s:
                    return stop, replicas, neighbour
    return -1, -1, -1
