"""Stages of a window, chosen anew and exactly while all others stay: compiled.

The window's stages are built back to front, as in `heterps_agents.exact.solve`, from all devices
that the stages outside leave free. Of partial windows that cover the same layers with the same
devices and the same front class, those that no other beats in both step time and fill are kept, and
only where they may still beat the placement that is known.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from heterps_agents.learned.window_labels import TABLE
from heterps_envs.closed_form.formula import append_stage, in_flight, is_dominated
from heterps_envs.closed_form.objective import MISSES_FLOOR, TIE_BREAK_USD_PER_HOUR
from heterps_envs.compiled import uncounted

_GAIN = 1 - 1e-9
# As a number of stages: no more may follow.
_DEAD = 1 << 30


@njit(cache=True, error_model="numpy")
def improve_windows(
    k: Any,
    class_price: Any,
    value_prefix_s: Any,
    goal: Any,
    stages: Any,
    count: int,
    cost: float,
    size: int,
    labels: Any,
    most: int,
) -> tuple[int, float, int]:
    """Chooses windows of stages anew, one after the other, until none gets better.

    Args:
        k: `KernelTables`.
        class_price: (T,) see `heterps_envs.environments.stage.packed.StageProblems`.
        value_prefix_s: (L + 1,) the same.
        goal: `heterps_envs.closed_form.objective.Goal`.
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
    work = np.zeros(1, np.int64)
    row, since = 0, 0
    while since < max(1, count - size + 1) and work[0] < most:
        row = row % max(1, count - size + 1)
        last = min(row + size, count) - 1
        count, better = improve_window(
            k, class_price, value_prefix_s, goal, stages, count, row, last,
            last - row + 2, cost, labels, work, most,
        )  # fmt: skip
        since = 0 if better < cost else since + 1
        row, cost = row + 1, better
    return count, cost, work[0]


@njit(cache=True, error_model="numpy")
def improve_window(
    k: Any,
    class_price: Any,
    value_prefix_s: Any,
    goal: Any,
    stages: Any,
    count: int,
    first: int,
    last: int,
    most_stages: int,
    best: float,
    labels: Any,
    work: Any,
    most: int,
) -> tuple[int, float]:
    """Replaces the stages `first .. last` by better ones.

    `work` counts the stages tried, `most` at most. Returns how many stages there are then, and
    their cost; arguments as for `improve_windows`.
    """
    free = k.device_count.copy()
    for row in range(count):
        if row < first or row > last:
            free[stages[row, 1]] -= stages[row, 2]
    _start(k, stages, count, last, labels)
    begin = stages[first - 1, 0] if first > 0 else 0
    end = stages[last, 0]
    front_price = TIE_BREAK_USD_PER_HOUR
    for row in range(first):
        front_price += stages[row, 2] * k.price_usd_per_hour[stages[row, 1]]
    scratch = np.empty((2, k.num_classes))
    _least_delays(k, stages, first, begin, end, free, labels.delay_s, scratch)
    winner, best = _sweep(
        k, class_price, value_prefix_s, goal, stages, first, begin, end, most_stages,
        free, front_price, labels, best, work, most,
    )  # fmt: skip
    if winner < 0:
        return count, best
    return _write(stages, count, first, last, labels, winner), best


@uncounted
def _sweep(
    k: Any,
    class_price: Any,
    value_prefix_s: Any,
    goal: Any,
    stages: Any,
    first: int,
    begin: int,
    end: int,
    most_stages: int,
    free: Any,
    front_price: float,
    labels: Any,
    best: float,
    work: Any,
    most: int,
) -> tuple[int, float]:
    """Fills the labels from the window's end to its begin; returns the best one, and its cost.

    -1 where none is better than what is known.
    """
    labels.first[begin : end + 1] = -1
    labels.table[:] = -1
    labels.first[end], labels.following[0], labels.cut[0] = 0, -1, end
    unused, winner, room = 1, -1, len(labels.cut)
    for stop in range(end, begin, -1):
        label = labels.first[stop]
        while label >= 0:
            if labels.depth[label] < most_stages:
                unused, winner, best = _extend(
                    k, class_price, value_prefix_s, goal, stages, first, begin,
                    stop, label, free, front_price, labels, unused, winner, best, work, most,
                )  # fmt: skip
            if unused >= room - 1 or work[0] >= most:
                break
            label = labels.following[label]
        if unused >= room - 1 or work[0] >= most:
            break
    return winner, best


@uncounted
def _start(k: Any, stages: Any, count: int, last: int, labels: Any) -> None:
    """Label 0: the stages behind the window."""
    behind_s, fill_s, total, next_kind, price = 0.0, 0.0, 0, -1, 0.0
    for row in range(count - 1, last, -1):
        kind, replicas = stages[row, 1], stages[row, 2]
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, total)
        behind_s, fill_s = append_stage(
            k, stages[row - 1, 0], stages[row, 0], kind, replicas, held, next_kind,
            behind_s, fill_s,
        )  # fmt: skip
        total += replicas
        price += replicas * k.price_usd_per_hour[kind]
        next_kind = kind
    labels.behind[0], labels.kind[0], labels.replicas[0] = -1, next_kind, 0
    labels.used[0] = 0
    labels.key[0], labels.total[0], labels.depth[0] = 0, total, 0
    labels.price[0], labels.behind_s[0], labels.fill_s[0] = price, behind_s, fill_s


@uncounted
def _least_delays(
    k: Any, stages: Any, first: int, begin: int, end: int, free: Any, delay_s: Any, scratch: Any
) -> None:
    """Fill of what is in front: fixed stages exactly, layers of the window at best."""
    classes = k.num_classes
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
    for kind in range(classes):
        delay_s[begin, kind] = fixed
        if first > 0:
            front = stages[first - 1, 1]
            transfer = k.output_bytes[begin - 1] * k.inverse_bandwidth_s_per_byte[front, kind]
            delay_s[begin, kind] += 2.0 * (k.latency_s[front, kind] + transfer)
    before, following = scratch[0], scratch[1]
    before[:classes] = np.inf
    for cut in range(begin + 1, end):
        for kind in range(classes):
            compute = k.compute_prefix_s[cut, kind] - k.compute_prefix_s[cut - 1, kind]
            least = min(before[kind], delay_s[cut - 1, kind])
            following[kind] = least + compute if free[kind] > 0 else np.inf
        for kind in range(classes):
            before[kind] = following[kind]
        for behind in range(classes):
            least = np.inf
            for kind in range(classes):
                transfer = k.output_bytes[cut - 1] * k.inverse_bandwidth_s_per_byte[kind, behind]
                message = 2.0 * (k.latency_s[kind, behind] + transfer)
                least = min(least, before[kind] + message)
            delay_s[cut, behind] = least


@uncounted
def _extend(
    k: Any,
    class_price: Any,
    value_prefix_s: Any,
    goal: Any,
    stages: Any,
    first: int,
    begin: int,
    stop: int,
    label: int,
    free: Any,
    front_price: float,
    labels: Any,
    unused: int,
    winner: int,
    best: float,
    work: Any,
    most: int,
) -> tuple[int, int, float]:
    """Puts every stage before one label."""
    total, next_kind = labels.total[label], labels.kind[label]
    behind_s, fill_s = labels.behind_s[label], labels.fill_s[label]
    free_price = 0.0
    for kind in range(k.num_classes):
        free_price += (free[kind] - labels.used[label, kind]) * class_price[kind]
    for kind in range(k.num_classes):
        left = free[kind] - labels.used[label, kind]
        for replicas in range(1, left + 1):
            if is_dominated(k.num_micro_batches, k.is_gpipe, replicas):
                continue
            share = (k.num_micro_batches + replicas - 1) // replicas
            held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, total)
            price = labels.price[label] + replicas * k.price_usd_per_hour[kind]
            limit_s = min(best / (price + front_price) if goal.is_price else best, goal.floor_s)
            work_left_s = limit_s * (free_price - replicas * class_price[kind])
            for start in range(stop - 1, begin - 1, -1):
                memory = (k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]) + held * (
                    k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
                )
                compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
                if memory > k.memory_bytes[kind] or share * compute >= limit_s:
                    break
                if value_prefix_s[start] - value_prefix_s[begin] > work_left_s:
                    continue
                if work[0] >= most:
                    return unused, winner, best
                work[0] += 1
                reached_s, filled_s = append_stage(
                    k, start, stop, kind, replicas, held, next_kind, behind_s, fill_s
                )
                if reached_s + labels.delay_s[start, kind] >= limit_s:
                    continue
                if unused >= len(labels.cut) - 1:
                    return unused, winner, best
                _put(
                    labels, unused, label, start, kind, replicas, total, price, reached_s, filled_s
                )
                if start > begin:
                    unused = _keep(labels, unused)
                    continue
                cost = _complete(k, goal, stages, first, labels, unused)
                if cost < best * _GAIN:
                    best, winner = cost, unused
                    unused += 1
                    limit_s = min(
                        best / (price + front_price) if goal.is_price else best, goal.floor_s
                    )
    return unused, winner, best


@uncounted
def _put(
    labels: Any,
    unused: int,
    label: int,
    start: int,
    kind: int,
    replicas: int,
    total: int,
    price: float,
    behind_s: float,
    fill_s: float,
) -> None:
    labels.behind[unused], labels.cut[unused] = label, start
    labels.kind[unused], labels.replicas[unused] = kind, replicas
    labels.total[unused], labels.depth[unused] = total + replicas, labels.depth[label] + 1
    labels.price[unused] = price
    labels.behind_s[unused], labels.fill_s[unused] = behind_s, fill_s
    key = start * 16 + kind
    for other in range(labels.used.shape[1]):
        used = labels.used[label, other] + (replicas if other == kind else 0)
        labels.used[unused, other] = used
        key = key * 1_000_003 + used
    labels.key[unused] = key


@uncounted
def _keep(labels: Any, label: int) -> int:
    """Adds a label to its cut, unless another one is as good; returns the next unused one."""
    cut, key = labels.cut[label], labels.key[label]
    behind_s, fill_s = labels.behind_s[label], labels.fill_s[label]
    place = key & (TABLE - 1)
    previous, here = -1, labels.table[place]
    while here >= 0:
        following = labels.alike[here]
        if labels.key[here] == key:
            if labels.behind_s[here] <= behind_s and labels.fill_s[here] <= fill_s:
                return label
            if labels.behind_s[here] >= behind_s and labels.fill_s[here] >= fill_s:
                labels.depth[here] = _DEAD
                if previous >= 0:
                    labels.alike[previous] = following
                else:
                    labels.table[place] = following
                here = following
                continue
        previous, here = here, following
    labels.alike[label], labels.table[place] = labels.table[place], label
    labels.following[label], labels.first[cut] = labels.first[cut], label
    return label + 1


@uncounted
def _complete(k: Any, goal: Any, stages: Any, first: int, labels: Any, label: int) -> float:
    """Cost with the fixed stages in front; inf where they do not fit any more."""
    behind_s, fill_s = labels.behind_s[label], labels.fill_s[label]
    total, next_kind, price = labels.total[label], labels.kind[label], labels.price[label]
    for row in range(first - 1, -1, -1):
        stop, kind, replicas = stages[row, 0], stages[row, 1], stages[row, 2]
        start = stages[row - 1, 0] if row > 0 else 0
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, total)
        memory = (k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]) + held * (
            k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
        )
        if memory > k.memory_bytes[kind]:
            return math.inf
        behind_s, fill_s = append_stage(
            k, start, stop, kind, replicas, held, next_kind, behind_s, fill_s
        )
        total += replicas
        price += replicas * k.price_usd_per_hour[kind]
        next_kind = kind
    if behind_s > goal.floor_s:
        return MISSES_FLOOR * (behind_s / goal.floor_s)  # type: ignore[no-any-return]
    return (price + TIE_BREAK_USD_PER_HOUR) * behind_s if goal.is_price else behind_s  # type: ignore[no-any-return]


@njit(cache=True, error_model="numpy")
def _write(stages: Any, count: int, first: int, last: int, labels: Any, winner: int) -> int:
    """Puts the stages of a label in the window's place; returns how many there are then."""
    size, label = labels.depth[winner], winner
    behind = count - last - 1
    moved = stages[last + 1 : count].copy()
    end = stages[last, 0]
    row = first
    while labels.behind[label] >= 0:
        following = labels.behind[label]
        stages[row, 0] = labels.cut[following]
        stages[row, 1], stages[row, 2] = labels.kind[label], labels.replicas[label]
        row, label = row + 1, following
    stages[row - 1, 0] = end
    stages[row : row + behind] = moved
    return first + size + behind  # type: ignore[no-any-return]
