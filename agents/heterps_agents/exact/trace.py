"""The way back through the labels of the exact solver: from the best one to its stages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from heterps_agents.exact.kernels import SAME, after_s, largest_total_after, link_s
from heterps_envs.closed_form.formula import in_flight, is_dominated, stage_work_s
from heterps_envs.closed_form.objective import write_code


@njit(cache=True)
def trace_back(k: Any, space: Any, labels: Any, kind: int, state: int, code: Any) -> bool:
    """Writes the code of the placement that reaches the best label of a state of layer 0.

    Searching each stage again is cheaper than storing a choice for every label.
    """
    stages = np.empty((k.num_layers, 3), np.int64)
    start, count, label = 0, 0, labels.first[0, kind, state]
    while start < k.num_layers:
        stop, replicas, neighbour, label = _front_stage(k, space, labels, start, kind, state, label)
        if stop < 0:
            return False
        stages[count, 0], stages[count, 1], stages[count, 2] = stop, kind, replicas
        count += 1
        state -= replicas * space.strides[kind]
        start, kind = stop, neighbour
    write_code(stages, count, code)
    return True


@njit(cache=True)
def _front_stage(
    k: Any, space: Any, labels: Any, start: int, kind: int, state: int, label: int
) -> tuple[int, int, int, int]:
    """(stop, replicas, class behind, label behind) of a front stage that reaches a label."""
    target_s = labels.behind_s[label] * (1.0 + SAME)
    target_fill_s = labels.fill_s[label] * (1.0 + SAME)
    for stop in range(start + 1, k.num_layers + 1):
        state_bytes = k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]
        activation_bytes = k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
        forward = k.forward_prefix_s[stop, kind] - k.forward_prefix_s[start, kind]
        compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        for replicas in range(1, space.used[state, kind] + 1):
            if is_dominated(k.num_micro_batches, k.is_gpipe, replicas):
                continue
            share = (k.num_micro_batches + replicas - 1) // replicas
            behind = state - replicas * space.strides[kind]
            total = space.totals[behind]
            largest = largest_total_after(
                k, replicas, state_bytes, activation_bytes, k.memory_bytes[kind]
            )
            after = after_s(k, start, stop, kind, replicas)
            if total > largest or share * compute + after > target_s:
                continue
            if stop == k.num_layers:
                if behind == 0 and compute <= target_fill_s:
                    return stop, replicas, kind, 0
                continue
            held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, total)
            for neighbour in range(k.num_classes):
                latency, transfer = link_s(k, stop, kind, neighbour)
                message, link = 2.0 * (latency + transfer), 2.0 * latency + (share + 1) * transfer
                other = labels.first[stop, neighbour, behind]
                while other > 0:
                    round_trip = message + labels.fill_s[other]
                    busy = stage_work_s(forward, compute - forward, round_trip, share, held)
                    rest = max(message + labels.behind_s[other], link)
                    if (
                        max(busy + after, compute + rest) <= target_s
                        and compute + round_trip <= target_fill_s
                    ):
                        return stop, replicas, neighbour, other
                    other = labels.following[other]
    return -1, -1, -1, 0
