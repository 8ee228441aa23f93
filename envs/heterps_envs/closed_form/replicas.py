"""Replicas for stages that are formed already, compiled: exactly, or greedily where that is long.

Exactly: stages from the back to the front, over the devices that each class has given beyond one
for each of its stages. That says how many replicas stand behind a stage, hence what it holds in
flight, its memory and its waiting; and the fill of a pipeline does not depend on replicas. So for
each state only the least step time so far matters, and the last states give the least price too.

Greedily: the stage that sets the step time (or lacks most memory) gets one replica more while its
class has a free device; the best state on this way is kept. Then single changes follow while one of
them helps: one replica more, one fewer, or one moved to another stage of the class.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from heterps_envs.closed_form.formula import MAX_REPLICAS, append_stage, in_flight

# Added to prices, so that among equally cheap placements (free devices) the faster one wins.
TIE_BREAK_USD_PER_HOUR = 1e-9
# Costs above these are no step times and no prices: too slow for the floor; lacks memory.
_TOO_SLOW, _LACKS_MEMORY = 1e9, 1e12
# A change must gain so much, or rounding would let two changes undo each other for ever.
_LEAST_GAIN = 1e-12
# More states than these are not searched: some milliseconds.
MAX_STATES = 2000


@njit(cache=True)
def provision_stages(
    k: Any, stages: Any, num_stages: int, is_price: bool, floor_s: float
) -> tuple[float, float, float]:
    """Writes the best numbers of replicas into `stages`, or good ones where that takes too long.

    Args:
        k: `KernelTables`.
        stages: (L, 3) int64 rows (layer behind the last, class, 1), front first; each class has a
            device for each of its stages.
        num_stages: Rows in use.
        is_price: Minimise price per hour times step time; otherwise the step time.
        floor_s: Longest step time that is allowed; inf for any.

    Returns:
        Step time in seconds, US dollars per hour, and the memory that its devices lack, as shares
        of a device (0 where all fits).
    """
    free, used = k.device_count.copy(), np.zeros(k.num_classes, np.int64)
    for row in range(num_stages):
        free[stages[row, 1]] -= 1
        used[stages[row, 1]] = 1
    states = 1
    for kind in range(k.num_classes):
        free[kind] *= used[kind]
        states = min(states * (free[kind] + 1), MAX_STATES + 1)
    is_done = states <= MAX_STATES and _best_of_all(
        k, stages, num_stages, is_price, floor_s, free, states
    )
    if not is_done:
        provision_greedily(k, stages, num_stages, is_price, floor_s, free)
    step_time_s, price, excess, _ = measure(k, stages, num_stages)
    return step_time_s, price, excess


@njit(cache=True)
def _best_of_all(
    k: Any, stages: Any, num_stages: int, is_price: bool, floor_s: float, free: Any, states: int
) -> bool:
    """Writes the best replicas, if some fit and keep the floor.

    A state is a number: with strides of `free + 1`, the devices given beyond one for each stage.
    """
    stride, extra = np.ones(k.num_classes, np.int64), np.zeros(states, np.int64)
    for kind in range(1, k.num_classes):
        stride[kind] = stride[kind - 1] * (free[kind - 1] + 1)
    for state in range(states):
        for kind in range(k.num_classes):
            extra[state] += (state // stride[kind]) % (free[kind] + 1)
    least, fill_s = np.full(states, math.inf), 0.0
    least[0] = 0.0
    given = np.zeros((num_stages, states), np.int8)
    for row in range(num_stages - 1, -1, -1):
        least, fill_s = _with_stage(
            k, stages, num_stages, row, free, stride, extra, least, fill_s, given[row]
        )
    best, best_cost = -1, math.inf
    for state in range(states):
        if least[state] > floor_s:
            continue
        price = TIE_BREAK_USD_PER_HOUR
        for row in range(num_stages):
            price += k.price_usd_per_hour[stages[row, 1]]
        for kind in range(k.num_classes):
            more = (state // stride[kind]) % (free[kind] + 1)
            price += more * k.price_usd_per_hour[kind]
        cost = price * least[state] if is_price else least[state]
        if cost < best_cost:
            best, best_cost = state, cost
    if best < 0:
        return False
    for row in range(num_stages):
        stages[row, 2] = 1 + given[row, best]
        best -= given[row, best] * stride[stages[row, 1]]
    return True


@njit(cache=True)
def _with_stage(
    k: Any,
    stages: Any,
    num_stages: int,
    row: int,
    free: Any,
    stride: Any,
    extra: Any,
    least: Any,
    fill_s: float,
    given: Any,
) -> tuple[Any, float]:
    """Puts a stage with any replicas in front of all states; returns theirs, and the fill."""
    stop, kind = stages[row, 0], stages[row, 1]
    start = stages[row - 1, 0] if row > 0 else 0
    next_kind = stages[row + 1, 1] if row + 1 < num_stages else -1
    state_bytes = k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]
    kept_bytes = k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
    after, filled_s = np.full(len(least), math.inf), fill_s
    most = min(MAX_REPLICAS, k.num_micro_batches)
    for state in range(len(least)):
        if least[state] == math.inf:
            continue
        left = free[kind] - (state // stride[kind]) % (free[kind] + 1)
        replicas_behind = num_stages - 1 - row + extra[state]
        for more in range(min(left, most - 1) + 1):
            held = in_flight(k.num_micro_batches, k.is_gpipe, more + 1, replicas_behind)
            if state_bytes + held * kept_bytes > k.memory_bytes[kind]:
                continue
            step_s, filled_s = append_stage(
                k, start, stop, kind, more + 1, held, next_kind, least[state], fill_s
            )
            reached = state + more * stride[kind]
            if step_s < after[reached]:
                after[reached], given[reached] = step_s, more
    return after, filled_s


@njit(cache=True)
def measure(k: Any, stages: Any, num_stages: int) -> tuple[float, float, float, int]:
    """Closed form of stages, whether they fit or not.

    Args:
        k: `KernelTables`.
        stages: (L, 3) int64, rows (layer behind the last, class, replicas), front first.
        num_stages: Rows in use.

    Returns:
        Step time in seconds; US dollars per hour; memory that its devices lack, as shares of a
        device; the row of the stage that needs a replica most.
    """
    behind_s, fill_s, price, excess, replicas_behind = 0.0, 0.0, 0.0, 0.0, 0
    slowest, fullest, most = num_stages - 1, 0, 0.0
    for row in range(num_stages - 1, -1, -1):
        stop, kind, replicas = stages[row, 0], stages[row, 1], stages[row, 2]
        start = stages[row - 1, 0] if row > 0 else 0
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, replicas_behind)
        memory = (k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]) + held * (
            k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
        )
        limit = k.memory_bytes[kind]
        if memory > limit:
            lacking = memory / limit - 1.0 if limit > 0.0 else math.inf
            excess += replicas * lacking
            if lacking > most:
                most, fullest = lacking, row
        next_kind = stages[row + 1, 1] if row + 1 < num_stages else -1
        reached_s, filled_s = append_stage(
            k, start, stop, kind, replicas, held, next_kind, behind_s, fill_s
        )
        # Otherwise the stages behind it set the step time, and this one only delays them.
        if reached_s > behind_s + (filled_s - fill_s) + 1e-15:
            slowest = row
        behind_s, fill_s = reached_s, filled_s
        price += replicas * k.price_usd_per_hour[kind]
        replicas_behind += replicas
    return behind_s, price, excess, (fullest if excess > 0.0 else slowest)


@njit(cache=True)
def _cost(step_time_s: float, price: float, excess: float, is_price: bool, floor_s: float) -> float:
    if excess > 0.0:
        return _LACKS_MEMORY * (1.0 + excess)
    if step_time_s > floor_s:
        return _TOO_SLOW * (step_time_s / floor_s)
    return (price + TIE_BREAK_USD_PER_HOUR) * step_time_s if is_price else step_time_s


@njit(cache=True)
def _cost_of(k: Any, stages: Any, num_stages: int, is_price: bool, floor_s: float) -> float:
    step_time_s, price, excess, _ = measure(k, stages, num_stages)
    return _cost(step_time_s, price, excess, is_price, floor_s)


@njit(cache=True)
def provision_greedily(
    k: Any, stages: Any, num_stages: int, is_price: bool, floor_s: float, free: Any
) -> None:
    """Writes good replicas; they lack memory or miss the floor where none are found that do not.

    Args:
        k: `KernelTables`.
        stages: See `provision_stages`.
        num_stages: Rows in use.
        is_price: See `provision_stages`.
        floor_s: See `provision_stages`.
        free: (T,) devices beyond one for each stage; changed.
    """
    best = _feed_the_slowest(k, stages, num_stages, is_price, floor_s, free)
    while True:
        improved = _best_change(k, stages, num_stages, is_price, floor_s, free, best)
        if not improved < best * (1.0 - _LEAST_GAIN):
            break
        best = improved


@njit(cache=True)
def _feed_the_slowest(
    k: Any, stages: Any, num_stages: int, is_price: bool, floor_s: float, free: Any
) -> float:
    """One replica after the other for the stage that needs it most; leaves the best state."""
    best, best_replicas = math.inf, stages[:num_stages, 2].copy()
    while True:
        step_time_s, price, excess, needy = measure(k, stages, num_stages)
        cost = _cost(step_time_s, price, excess, is_price, floor_s)
        if cost < best:
            best = cost
            best_replicas[:] = stages[:num_stages, 2]
        kind = stages[needy, 1]
        if free[kind] == 0 or stages[needy, 2] >= min(MAX_REPLICAS, k.num_micro_batches):
            break
        free[kind] -= 1
        stages[needy, 2] += 1
    for row in range(num_stages):
        free[stages[row, 1]] += stages[row, 2] - best_replicas[row]
        stages[row, 2] = best_replicas[row]
    return best


@njit(cache=True)
def _best_change(
    k: Any, stages: Any, num_stages: int, is_price: bool, floor_s: float, free: Any, best: float
) -> float:
    """Makes the single change that helps most, if one does; returns the cost afterwards."""
    gains_at, loses_at, least = -1, -1, best
    most_replicas = min(MAX_REPLICAS, k.num_micro_batches)
    for more in range(-1, num_stages):
        if more >= 0 and stages[more, 2] >= most_replicas:
            continue
        for fewer in range(-1, num_stages):
            if fewer == more or (fewer >= 0 and stages[fewer, 2] == 1):
                continue
            if more >= 0:
                kind = stages[more, 1]
                if fewer >= 0 and stages[fewer, 1] != kind:
                    continue
                if fewer < 0 and free[kind] == 0:
                    continue
                stages[more, 2] += 1
            if fewer >= 0:
                stages[fewer, 2] -= 1
            cost = _cost_of(k, stages, num_stages, is_price, floor_s)
            if more >= 0:
                stages[more, 2] -= 1
            if fewer >= 0:
                stages[fewer, 2] += 1
            if cost < least * (1.0 - _LEAST_GAIN):
                gains_at, loses_at, least = more, fewer, cost
    if gains_at >= 0:
        stages[gains_at, 2] += 1
        free[stages[gains_at, 1]] -= 1
    if loses_at >= 0:
        stages[loses_at, 2] -= 1
        free[stages[loses_at, 1]] += 1
    return least
