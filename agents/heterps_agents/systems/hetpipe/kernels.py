"""Kernels of HetPipe's partition: layers of a virtual worker's devices, in any order or one."""

from __future__ import annotations

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked


@checked
def least_slowest(
    compute_s: Floats,
    state_bytes: Floats,
    kept_bytes: Floats,
    cut_bytes: Floats,
    counts: Integers,
    memory_bytes: Floats,
    links: Floats,
    in_flight: int,
    all_at_once: bool,
) -> Integers:
    """(K, 2) kind and first layer of each stage from the front, whose slowest takes least.

    Stages are chosen from the back, so that it is known how many mini-batches each holds. A state
    has the devices used, the kind of the stage in front of them and of the frontmost of them, and
    that one's first layer. All devices are used; without rows where nothing fits.

    Args:
        compute_s: (T, L + 1) of the layers in front of each border, both passes, on each kind.
        state_bytes: (L + 1,) of the same layers.
        kept_bytes: (L + 1,) of the same layers, for one mini-batch.
        cut_bytes: (L + 1,) that cross each border, one way.
        counts: (T,) devices of each kind.
        memory_bytes: (T,) of a device.
        links: (2, T, T) latency, and seconds for each byte, from one kind to another.
        in_flight: Mini-batches in the pipeline.
        all_at_once: A stage holds them all, and not only those that are behind it.
    """
    num_kinds, num_layers = compute_s.shape[0], compute_s.shape[1] - 1
    num_stages, strides = int(counts.sum()), np.ones(num_kinds + 1, np.int64)
    for kind in range(num_kinds):
        strides[kind + 1] = strides[kind] * (counts[kind] + 1)
    num_states, nothing = int(strides[num_kinds]), num_kinds  # no kind: nothing in front, or behind
    shape = (num_states, num_kinds + 1, num_kinds + 1, num_layers + 1)
    best = np.full(shape, np.inf)
    origin = np.full(shape, -1, np.int64)  # kind behind, and its first layer
    for front in range(num_kinds):
        best[0, front, nothing, num_layers] = 0.0
    for state in range(num_states - 1):
        used = 0
        for kind in range(num_kinds):
            used += state // strides[kind] % (counts[kind] + 1)
        holds = in_flight if all_at_once else min(in_flight, used + 1)
        ahead = num_stages - used - 1  # that still need a layer each
        for own in range(num_kinds):
            if state // strides[own] % (counts[own] + 1) == counts[own]:
                continue
            reached = state + strides[own]
            for behind in range(num_kinds + 1):
                for stop in range(1, num_layers + 1):
                    value = best[state, own, behind, stop]
                    if value == np.inf:
                        continue
                    after_s = 0.0
                    if behind < nothing:
                        after_s = links[0, behind, own] + cut_bytes[stop] * links[1, behind, own]
                    for first in range(stop - 1, ahead - 1, -1):
                        held = state_bytes[stop] - state_bytes[first]
                        held += holds * (kept_bytes[stop] - kept_bytes[first])
                        if held > memory_bytes[own]:
                            break
                        if (first == 0) != (ahead == 0):
                            continue
                        seconds = compute_s[own, stop] - compute_s[own, first] + after_s
                        for front in range(num_kinds + 1):
                            if (front == nothing) != (ahead == 0):
                                continue
                            slowest = seconds
                            if front < nothing:
                                if reached // strides[front] % (counts[front] + 1) == counts[front]:
                                    continue
                                slowest += links[0, front, own]
                                slowest += cut_bytes[first] * links[1, front, own]
                            slowest = max(slowest, value)
                            if slowest < best[reached, front, own, first]:
                                best[reached, front, own, first] = slowest
                                origin[reached, front, own, first] = (
                                    behind * (num_layers + 1) + stop
                                )
    state, front, first = num_states - 1, nothing, 0
    own = int(np.argmin(best[state, front, :, first]))
    if best[state, front, own, first] == np.inf:
        return np.zeros((0, 2), np.int64)
    stages = np.zeros((num_stages, 2), np.int64)
    for stage in range(num_stages):
        stages[stage, 0], stages[stage, 1] = own, first
        code = int(origin[state, front, own, first])
        state -= int(strides[own])
        front, own, first = own, code // (num_layers + 1), code % (num_layers + 1)
    return stages


@checked
def least_slowest_in(
    order: Integers,
    compute_s: Floats,
    state_bytes: Floats,
    kept_bytes: Floats,
    cut_bytes: Floats,
    memory_bytes: Floats,
    links: Floats,
    in_flight: int,
    all_at_once: bool,
) -> tuple[float, Integers]:
    """Seconds of the slowest stage, and first layers, where devices have an order; inf: no room.

    The order has (K,) kinds of devices from the front; all else is as in `least_slowest`.
    """
    num_stages, num_layers = len(order), compute_s.shape[1] - 1
    best = np.full((num_stages + 1, num_layers + 1), np.inf)
    ends = np.zeros((num_stages + 1, num_layers + 1), np.int64)
    best[num_stages, num_layers] = 0.0
    for stage in range(num_stages - 1, -1, -1):
        own, holds = order[stage], in_flight
        if not all_at_once:
            holds = min(in_flight, num_stages - stage)
        for stop in range(stage + 1, num_layers + 1):
            value = best[stage + 1, stop]
            if value == np.inf:
                continue
            after_s = 0.0
            if stage + 1 < num_stages:
                behind = order[stage + 1]
                after_s = links[0, behind, own] + cut_bytes[stop] * links[1, behind, own]
            for first in range(stop - 1, stage - 1, -1):
                held = state_bytes[stop] - state_bytes[first]
                held += holds * (kept_bytes[stop] - kept_bytes[first])
                if held > memory_bytes[own]:
                    break
                slowest = compute_s[own, stop] - compute_s[own, first] + after_s
                if stage > 0:
                    front = order[stage - 1]
                    slowest += links[0, front, own] + cut_bytes[first] * links[1, front, own]
                slowest = max(slowest, value)
                if slowest < best[stage, first]:
                    best[stage, first] = slowest
                    ends[stage, first] = stop
    cuts = np.zeros(num_stages, np.int64)
    if best[0, 0] < np.inf:
        for stage in range(num_stages - 1):
            cuts[stage + 1] = ends[stage, cuts[stage]]
    return best[0, 0], cuts
