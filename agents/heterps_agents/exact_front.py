"""How much the layers that are not placed yet delay the rest at least: a sweep front to back.

The stages before a cut delay everything behind it by their fill, the sum of `C_j + 2 X_j`. The
least fill, over all stages that the devices left allow and that keep the limit on the step time
themselves, comes from a dynamic programme of its own, with one number for each state. It knows
less than the sweep back to front: not how many micro-batches are in flight, so it takes as few as
there can be for the memory, and as many for the waiting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_agents.exact_kernels import after_s, is_dominated, link_s
from heterps_envs.closed_form import KernelTables, in_flight

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def least_delay_s(
    kernel: KernelTables,
    used: Integers,
    strides: Integers,
    earliest_cut: Integers,
    least_s: Floats,
    limit_s: float,
) -> Floats:
    """(L, T, S) least fill of the layers before a cut, message over the cut included.

    By the cut, the class behind it and the devices used behind it; inf where the devices left
    cannot keep the limit.

    Args:
        kernel: Cost tables.
        used: (S, T) devices used in each state.
        strides: (T,) see `heterps_agents.exact_kernels.Space`.
        earliest_cut: (S,) smallest cut whose layers behind it fit on what a state leaves.
        least_s: (L,) compute of each layer on its fastest class.
        limit_s: Largest step time that is of use.
    """
    fill_s = np.full((kernel.num_layers, kernel.num_classes, len(used)), np.inf)
    behind_s = np.concatenate([np.cumsum(least_s[::-1])[::-1], [0.0]])
    _sweep(kernel, used, strides, used.sum(axis=1), earliest_cut, behind_s, limit_s, fill_s)
    delay_s = np.full_like(fill_s, np.inf)
    _over_the_cut(kernel, fill_s, delay_s)
    _at_most(used, strides, delay_s)
    # From the devices in front to those that are used behind them.
    delay_s = np.ascontiguousarray(delay_s[:, :, ::-1])
    delay_s[0] = 0.0
    return delay_s


@njit(cache=True)
def _sweep(
    k: Any,
    used: Any,
    strides: Any,
    totals: Any,
    earliest_cut: Any,
    behind_s: Any,
    limit_s: float,
    fill_s: Any,
) -> None:
    """Fills `fill_s` (L, T, S) by the class of the last stage before a cut, front to back."""
    states, before_s = np.empty(len(totals), np.int64), np.empty(len(totals))
    for start in range(k.num_layers - 1):
        for kind in range(k.num_classes):
            for replicas in range(1, k.device_count[kind] + 1):
                if is_dominated(k.num_micro_batches, k.is_gpipe, replicas):
                    continue
                count = 1
                states[0], before_s[0] = 0, 0.0
                if start > 0:
                    count = _collect(k, used, start, kind, replicas, fill_s, states, before_s)
                if count > 0:
                    _extend(
                        k, strides, totals, earliest_cut, start, kind, replicas, states[:count],
                        before_s, behind_s, limit_s, fill_s,
                    )  # fmt: skip


@njit(cache=True)
def _collect(
    k: Any, used: Any, start: int, kind: int, replicas: int, fill_s: Any, states: Any, before_s: Any
) -> int:
    """Writes the states before a cut that leave devices for a stage; returns how many."""
    most, count = k.device_count[kind] - replicas, 0
    for state in range(len(used)):
        if used[state, kind] > most:
            continue
        best = np.inf
        for neighbour in range(k.num_classes):
            latency, transfer = link_s(k, start, neighbour, kind)
            best = min(best, fill_s[start, neighbour, state] + 2.0 * (latency + transfer))
        if best < np.inf:
            states[count], before_s[count] = state, best
            count += 1
    return count


@njit(cache=True)
def _extend(
    k: Any,
    strides: Any,
    totals: Any,
    earliest_cut: Any,
    start: int,
    kind: int,
    replicas: int,
    states: Any,
    before_s: Any,
    behind_s: Any,
    limit_s: float,
    fill_s: Any,
) -> None:
    """Puts every stage of a class and replicas that begins at `start` behind the states."""
    share = (k.num_micro_batches + replicas - 1) // replicas
    least_held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, 1)
    shift = replicas * strides[kind]
    devices = k.device_count.sum()
    for stop in range(start + 1, k.num_layers):
        memory = (k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]) + least_held * (
            k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
        )
        compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        after = after_s(k, start, stop, kind, replicas)
        if memory > k.memory_bytes[kind] or share * compute + after > limit_s:
            break
        for index in range(len(states)):
            state = states[index] + shift
            if stop < earliest_cut[state]:
                continue
            most_held = in_flight(
                k.num_micro_batches, k.is_gpipe, replicas, devices - totals[state]
            )
            rounds = (share + most_held - 1) // most_held
            busy = max(share * compute, rounds * (compute + behind_s[stop])) + after
            fill = before_s[index] + compute
            if before_s[index] + busy <= limit_s and fill < fill_s[stop, kind, state]:
                fill_s[stop, kind, state] = fill


@njit(cache=True)
def _over_the_cut(k: Any, fill_s: Any, delay_s: Any) -> None:
    """Adds the message over each cut, by the class behind it."""
    for cut in range(1, k.num_layers):
        for behind in range(k.num_classes):
            for before in range(k.num_classes):
                latency, transfer = link_s(k, cut, before, behind)
                message = 2.0 * (latency + transfer)
                for state in range(fill_s.shape[2]):
                    delay = fill_s[cut, before, state] + message
                    if delay < delay_s[cut, behind, state]:
                        delay_s[cut, behind, state] = delay


@njit(cache=True)
def _at_most(used: Any, strides: Any, delay_s: Any) -> None:
    """Turns "with exactly these devices" into "with these devices at most"."""
    for cut in range(delay_s.shape[0]):
        for kind in range(delay_s.shape[1]):
            row = delay_s[cut, kind]
            for state in range(len(row)):
                for other in range(len(strides)):
                    if used[state, other] > 0:
                        row[state] = min(row[state], row[state - strides[other]])
