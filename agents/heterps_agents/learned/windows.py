"""Stages of a window, chosen anew and exactly while all others stay: compiled.

The window's stages are built back to front, as in `heterps_agents.exact.solve`, from all devices
that the stages outside leave free. Of partial windows that cover the same layers with the same
devices and the same front class, those that no other beats in both step time and fill are kept, and
only where they may still beat the placement that is known.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from heterps_agents.learned.window_labels import keep_label, put_label, put_stages
from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.formula import Built, append_stage, never_helps, next_replicas
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import TIE_BREAK_USD_PER_HOUR, Goal, graded_cost
from heterps_envs.closed_form.stage_formula import in_flight, stage_bytes
from heterps_envs.compiled import MINUS_ONE, ZERO, helper, kernel, uncounted_helper

_GAIN = 1 - 1e-9


class WindowProblem(NamedTuple):
    """What is to be minimised.

    Attributes:
        kernel: Cost tables.
        goal: Objective and throughput floor.
        class_price: (T,) see `heterps_envs.environments.stage.packed.StageProblems`.
        value_prefix_s: (L + 1,) the same.
    """

    kernel: KernelTables
    goal: Goal
    class_price: Floats
    value_prefix_s: Floats


class _Tries(NamedTuple):
    """(1,) int64 stages that were tried, and how many may be."""

    done: Integers
    most: int


class _Window(NamedTuple):
    """Stages of a placement that are to be replaced.

    Attributes:
        stages: (L + 1, 3) int64 of the placement.
        first: Its first stage in the window.
        begin, end: First layer of the window, and the first one behind it.
        most_stages: That may take their place.
        free: (T,) devices that the stages outside leave free.
        front_price: US dollars per hour of the stages in front.
    """

    stages: Integers
    first: int
    begin: int
    end: int
    most_stages: int
    free: Integers
    front_price: float


class _Found(NamedTuple):
    """How many labels are in use, the best complete one (-1: none), and the least cost."""

    unused: int
    winner: int
    best: float


@kernel
def improve_windows(
    problem: Any, stages: Any, count: int, cost: float, size: int, labels: Any, most: int
) -> tuple[int, float, int]:
    """Chooses windows of stages anew, one after the other, until none gets better.

    Args:
        problem: `WindowProblem`.
        stages: (L + 1, 3) int64, see `heterps_envs.closed_form.objective.read_stages`; changed in
            place.
        count: Stages in use.
        cost: Of these stages.
        size: Stages of a window; one more may take their place.
        labels: From `labels_for`.
        most: Stages to try at most.

    Returns:
        Stages in use, their cost, and how many stages were tried.
    """
    tries = _Tries(np.zeros(1, np.int64), most)
    row, since = 0, 0
    while since < max(1, count - size + 1) and tries.done[0] < most:
        row = row % max(1, count - size + 1)
        last = min(row + size, count) - 1
        count, better = _improve_window(problem, stages, count, row, last, cost, labels, tries)
        since = 0 if better < cost else since + 1
        row, cost = row + 1, better
    return count, cost, tries.done[0]


@helper
def _improve_window(
    problem: Any,
    stages: Any,
    count: int,
    first: int,
    last: int,
    best: float,
    labels: Any,
    tries: Any,
) -> tuple[int, float]:
    """Replaces the stages `first .. last` by better ones; how many there are then, and their cost.

    Arguments as for `improve_windows`; one stage more may take their place.
    """
    k = problem.kernel
    free = k.device_count.copy()
    for row in range(count):
        if row < first or row > last:
            kind = stages[row, 1]
            free[k.class_of_option[kind]] -= stages[row, 2] * k.devices_of_option[kind]
    _start(k, stages, count, last, labels)
    begin = stages[first - 1, 0] if first > 0 else 0
    front_price = TIE_BREAK_USD_PER_HOUR
    for row in range(first):
        front_price += stages[row, 2] * k.price_usd_per_hour[stages[row, 1]]
    window = _Window(stages, first, begin, stages[last, 0], last - first + 2, free, front_price)
    scratch = np.empty((2, k.num_options))
    _least_delays(k, window, labels.delay_s, scratch)
    winner, best = _sweep(problem, window, labels, best, tries)
    if winner < 0:
        return count, best
    return put_stages(stages, count, first, last, labels, winner), best


@uncounted_helper
def _sweep(problem: Any, window: Any, labels: Any, best: float, tries: Any) -> tuple[int, float]:
    """Fills the labels from the window's end to its begin; returns the best one, and its cost.

    -1 where none is better than what is known.
    """
    labels.first[window.begin : window.end + 1] = -1
    labels.table[:] = -1
    labels.first[window.end], labels.following[0], labels.cut[0] = 0, -1, window.end
    found, room = _Found(1, -1, best), len(labels.cut)
    for stop in range(window.end, window.begin, -1):
        label = labels.first[stop]
        while label >= 0:
            if labels.depth[label] < window.most_stages:
                found = _extend(problem, window, labels, stop, label, found, tries)
            if found.unused >= room - 1 or tries.done[0] >= tries.most:
                break
            label = labels.following[label]
        if found.unused >= room - 1 or tries.done[0] >= tries.most:
            break
    return found.winner, found.best


@uncounted_helper
def _start(k: Any, stages: Any, count: int, last: int, labels: Any) -> None:
    """Label 0: the stages behind the window."""
    behind_s, fill_s, total, next_kind, price = 0.0, 0.0, ZERO, MINUS_ONE, 0.0
    for row in range(count - 1, last, -1):
        kind, replicas = stages[row, 1], stages[row, 2]
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, total)
        behind_s, fill_s = append_stage(
            k, stages[row - 1, 0], stages[row, 0], kind, replicas, held,
            Built(next_kind, behind_s, fill_s),
        )  # fmt: skip
        total += replicas
        price += replicas * k.price_usd_per_hour[kind]
        next_kind = kind
    labels.behind[0], labels.kind[0], labels.replicas[0] = -1, next_kind, 0
    labels.used[0] = 0
    labels.key[0], labels.total[0], labels.depth[0] = 0, total, 0
    labels.price[0], labels.behind_s[0], labels.fill_s[0] = price, behind_s, fill_s


@uncounted_helper
def _least_delays(k: Any, window: Any, delay_s: Any, scratch: Any) -> None:
    """Fill of what is in front: fixed stages exactly, layers of the window at best."""
    stages, first, begin, free = window.stages, window.first, window.begin, window.free
    options = k.num_options
    start, fixed = 0, 0.0
    for row in range(first):
        stop, kind = stages[row, 0], stages[row, 1]
        fixed += k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        if row + 1 < first:
            transfer = (
                k.output_bytes[stop - 1] * k.inverse_bandwidth_s_per_byte[kind, stages[row + 1, 1]]
            )
            fixed += 2.0 * (k.latency_s[kind, stages[row + 1, 1]] + transfer)
        start = stop
    for kind in range(options):
        delay_s[begin, kind] = fixed
        if first > 0:
            front = stages[first - 1, 1]
            transfer = k.output_bytes[begin - 1] * k.inverse_bandwidth_s_per_byte[front, kind]
            delay_s[begin, kind] += 2.0 * (k.latency_s[front, kind] + transfer)
    before, following = scratch[0], scratch[1]
    before[:options] = np.inf
    for cut in range(begin + 1, window.end):
        for kind in range(options):
            compute = k.compute_prefix_s[cut, kind] - k.compute_prefix_s[cut - 1, kind]
            least = min(before[kind], delay_s[cut - 1, kind])
            has_room = free[k.class_of_option[kind]] >= k.devices_of_option[kind]
            following[kind] = least + compute if has_room else np.inf
        for kind in range(options):
            before[kind] = following[kind]
        for behind in range(options):
            least = np.inf
            for kind in range(options):
                transfer = k.output_bytes[cut - 1] * k.inverse_bandwidth_s_per_byte[kind, behind]
                message = 2.0 * (k.latency_s[kind, behind] + transfer)
                least = min(least, before[kind] + message)
            delay_s[cut, behind] = least


@uncounted_helper
def _extend(
    problem: Any, window: Any, labels: Any, stop: int, label: int, found: Any, tries: Any
) -> Any:
    """Puts every stage before one label; returns the `_Found` after that."""
    k, goal, class_price = problem.kernel, problem.goal, problem.class_price
    value_prefix_s, begin, free = problem.value_prefix_s, window.begin, window.free
    unused, winner, best = found
    total, next_kind = labels.total[label], labels.kind[label]
    behind_s, fill_s = labels.behind_s[label], labels.fill_s[label]
    free_price = 0.0
    for kind in range(k.num_classes):
        free_price += (free[kind] - labels.used[label, kind]) * class_price[kind]
    for kind in range(k.num_options):
        device_class, size = k.class_of_option[kind], k.devices_of_option[kind]
        left = (free[device_class] - labels.used[label, device_class]) // size
        left = min(left, k.num_micro_batches)
        replicas = ZERO
        while replicas < left:
            replicas = next_replicas(replicas, left)
            if never_helps(k, kind, replicas):
                continue
            share = (k.num_micro_batches + replicas - 1) // replicas
            held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, total)
            price = labels.price[label] + replicas * k.price_usd_per_hour[kind]
            limit_s = min(
                best / (price + window.front_price) if goal.is_price else best, goal.floor_s
            )
            work_left_s = limit_s * (free_price - replicas * size * class_price[device_class])
            for start in range(stop - 1, begin - 1, -1):
                memory = stage_bytes(k, start, stop, kind, replicas, held)
                compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
                if memory > k.memory_bytes[kind] or share * compute >= limit_s:
                    break
                if value_prefix_s[start] - value_prefix_s[begin] > work_left_s:
                    continue
                if tries.done[0] >= tries.most:
                    return _Found(unused, winner, best)
                tries.done[0] += 1
                reached_s, filled_s = append_stage(
                    k, start, stop, kind, replicas, held, Built(next_kind, behind_s, fill_s)
                )
                if reached_s + labels.delay_s[start, kind] >= limit_s:
                    continue
                if unused >= len(labels.cut) - 1:
                    return _Found(unused, winner, best)
                stage = (start, kind, replicas, device_class, replicas * size)
                put_label(labels, unused, label, stage, price, reached_s, filled_s)
                if start > begin:
                    unused = keep_label(labels, unused)
                    continue
                cost = _complete(k, goal, window, labels, unused)
                if cost < best * _GAIN:
                    best, winner = cost, unused
                    unused += 1
                    limit_s = min(
                        best / (price + window.front_price) if goal.is_price else best, goal.floor_s
                    )
    return _Found(unused, winner, best)


@uncounted_helper
def _complete(k: Any, goal: Any, window: Any, labels: Any, label: int) -> float:
    """Cost with the fixed stages in front; inf where they do not fit any more."""
    behind_s, fill_s = labels.behind_s[label], labels.fill_s[label]
    total, next_kind, price = labels.total[label], labels.kind[label], labels.price[label]
    stages = window.stages
    for row in range(window.first - 1, -1, -1):
        stop, kind, replicas = stages[row, 0], stages[row, 1], stages[row, 2]
        start = stages[row - 1, 0] if row > 0 else 0
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, total)
        if stage_bytes(k, start, stop, kind, replicas, held) > k.memory_bytes[kind]:
            return math.inf
        behind_s, fill_s = append_stage(
            k, start, stop, kind, replicas, held, Built(next_kind, behind_s, fill_s)
        )
        total += replicas
        price += replicas * k.price_usd_per_hour[kind]
        next_kind = kind
    return graded_cost(behind_s, price, 0.0, goal)
