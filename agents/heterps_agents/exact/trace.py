"""The way back through the labels of the exact solver: from the best one to its stages."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_agents.exact.kernels import SAME, link_s, total_and_held
from heterps_envs.closed_form.formula import never_helps
from heterps_envs.closed_form.objective import write_code
from heterps_envs.closed_form.stage_formula import in_flight, stage_after_option_s, stage_work_s
from heterps_envs.compiled import ZERO, checked, checked_helper


@checked
def trace_back(k: Any, space: Any, labels: Any, port: int, state: int, code: Any) -> bool:
    """Writes the code of the placement that reaches the best label of a state of layer 0.

    Searching each stage again is cheaper than storing a choice for every label.
    """
    stages = np.empty((k.num_layers, 3), np.int64)
    # Of one type with those that follow, so that what it calls is compiled once.
    label: Any = np.int64(labels.first[0, port, state])
    start, count = ZERO, 0
    while start < k.num_layers:
        found = _front_stage(k, space, labels, start, port, state, label)
        stop, option, replicas, port, label = found
        if stop < 0:
            return False
        stages[count, 0], stages[count, 1], stages[count, 2] = stop, option, replicas
        count += 1
        state -= replicas * space.shift[option]
        start = stop
    write_code(stages, count, code)
    return True


@checked_helper
def _front_stage(
    k: Any, space: Any, labels: Any, start: int, port: int, state: int, label: int
) -> tuple[int, int, int, int, int]:
    """(stop, option, replicas, port behind, label behind) of a stage that reaches a label."""
    target_s = labels.behind_s[label] * (1.0 + SAME)
    target_fill_s = labels.fill_s[label] * (1.0 + SAME)
    for stop in range(start + 1, k.num_layers + 1):
        for option in range(k.num_options):
            if space.port_of_option[option] != port:
                continue
            most = space.used[state, k.class_of_option[option]] // k.devices_of_option[option]
            for replicas in range(1, min(most, space.totals[state]) + 1):
                if never_helps(k, option, replicas):
                    continue
                behind = state - replicas * space.shift[option]
                neighbour, other = _behind(
                    k, space, labels, _Stage(start, stop, option, replicas), behind,
                    target_s, target_fill_s,
                )  # fmt: skip
                if neighbour >= 0:
                    return stop, option, replicas, neighbour, other
    return -1, -1, -1, -1, 0


class _Stage(NamedTuple):
    """Layers `start .. stop - 1` on some replicas of an option."""

    start: int
    stop: int
    option: int
    replicas: int


@checked_helper
def _behind(
    k: Any,
    space: Any,
    labels: Any,
    stage: Any,
    state: int,
    target_s: float,
    target_fill_s: float,
) -> tuple[int, int]:
    """(port, label) of a state behind a stage with which it reaches the targets; -1: none."""
    start, stop, option, replicas = stage
    share, total = (k.num_micro_batches + replicas - 1) // replicas, space.totals[state]
    forward = k.forward_prefix_s[stop, option] - k.forward_prefix_s[start, option]
    compute = k.compute_prefix_s[stop, option] - k.compute_prefix_s[start, option]
    after = stage_after_option_s(k, start, stop, option, replicas)
    largest, most = total_and_held(k, start, stop, option, replicas)
    if total > largest or share * compute + after > target_s:
        return -1, 0
    if stop == k.num_layers:
        return (0 if state == 0 and compute <= target_fill_s else -1), 0
    held = max(most, in_flight(k.num_micro_batches, k.is_gpipe, replicas, total))
    for neighbour in range(len(space.option_of_port)):
        latency, transfer = link_s(k, stop, option, space.option_of_port[neighbour])
        message, link = 2.0 * (latency + transfer), 2.0 * latency + (share + 1) * transfer
        other = labels.first[stop, neighbour, state]
        while other > 0:
            round_trip = message + labels.fill_s[other]
            busy = stage_work_s(forward, compute - forward, round_trip, share, held)
            rest = max(message + labels.behind_s[other], link)
            if (
                max(busy + after, compute + rest) <= target_s
                and compute + round_trip <= target_fill_s
            ):
                return neighbour, other
            other = labels.following[other]
    return -1, 0
