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
from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Integers
from heterps_envs.closed_form.formula import MAX_REPLICAS, Built, append_stage
from heterps_envs.closed_form.objective import (
    TIE_BREAK_USD_PER_HOUR,
    graded_cost,
    limited_cost,
    measure,
)
from heterps_envs.closed_form.stage_formula import in_flight, stage_bytes
from heterps_envs.compiled import checked, checked_helper

# A change must gain so much, or rounding would let two changes undo each other for ever.
_LEAST_GAIN = 1e-12
# More states than these are not searched: some milliseconds.
MAX_STATES = 2000


class _Devices(NamedTuple):
    """How states stand for devices given beyond one for each stage.

    Attributes:
        free: (T,) the most replicas that the options of a class may have beyond the first.
        stride: (T,) of a class in the number of a state.
        extra: (states,) replicas given in all.
        group: (T,) devices of a replica: all stages on a class have one number, or this search is
            not used.
    """

    free: Integers
    stride: Integers
    extra: Integers
    group: Integers


@checked
def provision_stages(k: Any, stages: Any, num_stages: int, goal: Any) -> tuple[float, float, float]:
    """Writes the best numbers of replicas into `stages`, or good ones where that takes too long.

    Args:
        k: `KernelTables`.
        stages: (L, 3) int64 rows (layer behind the last, option, 1), front first; each class has
            the devices for each of its stages.
        num_stages: Rows in use.
        goal: `heterps_envs.closed_form.objective.Goal`.

    Returns:
        Step time in seconds, US dollars per hour, and the memory that its devices lack, as shares
        of a device (0 where all fits).
    """
    free, group = k.device_count.copy(), np.zeros(k.num_classes, np.int64)
    is_even = True
    for row in range(num_stages):
        kind = k.class_of_option[stages[row, 1]]
        size = k.devices_of_option[stages[row, 1]]
        free[kind] -= size
        is_even &= group[kind] == 0 or group[kind] == size
        group[kind] = size
    states, more = 1, np.zeros(k.num_classes, np.int64)
    for kind in range(k.num_classes):
        more[kind] = free[kind] // group[kind] if group[kind] > 0 else 0
        states = min(states * (more[kind] + 1), MAX_STATES + 1)
    is_done = is_even and states <= MAX_STATES
    is_done = is_done and _best_of_all(k, stages, num_stages, goal, more, group, states)
    if not is_done:
        provision_greedily(k, stages, num_stages, goal, free)
    step_time_s, price, excess, _ = measure(stages, num_stages, k, goal, math.inf)
    return step_time_s, price, excess


@checked_helper
def _best_of_all(
    k: Any, stages: Any, num_stages: int, goal: Any, free: Any, group: Any, states: int
) -> bool:
    """Writes the best replicas, if some fit and keep the floor.

    A state is a number: with strides of `free + 1`, the replicas given beyond one for each stage.
    """
    stride, extra = np.ones(k.num_classes, np.int64), np.zeros(states, np.int64)
    for kind in range(1, k.num_classes):
        stride[kind] = stride[kind - 1] * (free[kind - 1] + 1)
    for state in range(states):
        for kind in range(k.num_classes):
            extra[state] += (state // stride[kind]) % (free[kind] + 1)
    devices = _Devices(free, stride, extra, group)
    least, fill_s = np.full(states, math.inf), 0.0
    least[0] = 0.0
    given = np.zeros((num_stages, states), np.int32)
    for row in range(num_stages - 1, -1, -1):
        least, fill_s = _with_stage(k, stages, num_stages, row, devices, least, fill_s, given[row])
    best, best_cost = -1, math.inf
    for state in range(states):
        if least[state] > goal.floor_s:
            continue
        price = TIE_BREAK_USD_PER_HOUR
        for row in range(num_stages):
            price += k.price_usd_per_hour[stages[row, 1]]
        for kind in range(k.num_classes):
            more = (state // stride[kind]) % (free[kind] + 1)
            if more > 0:
                price += more * price_of_class(k, stages, num_stages, kind)
        cost = price * least[state] if goal.is_price else least[state]
        if cost < best_cost:
            best, best_cost = state, cost
    if best < 0:
        return False
    for row in range(num_stages):
        stages[row, 2] = 1 + given[row, best]
        best -= given[row, best] * stride[k.class_of_option[stages[row, 1]]]
    return True


@checked_helper
def price_of_class(k: Any, stages: Any, num_stages: int, kind: int) -> float:
    """US dollars per hour of one more replica on a class: that of its stages, all alike."""
    for row in range(num_stages):
        if k.class_of_option[stages[row, 1]] == kind:
            return k.price_usd_per_hour[stages[row, 1]]  # type: ignore[no-any-return]
    return 0.0


@checked_helper
def _with_stage(
    k: Any,
    stages: Any,
    num_stages: int,
    row: int,
    devices: Any,
    least: Any,
    fill_s: float,
    given: Any,
) -> tuple[Any, float]:
    """Puts a stage with any replicas in front of all states; returns theirs, and the fill."""
    stop, option = stages[row, 0], stages[row, 1]
    kind = k.class_of_option[option]
    start = stages[row - 1, 0] if row > 0 else 0
    next_kind = stages[row + 1, 1] if row + 1 < num_stages else -1
    after, filled_s = np.full(len(least), math.inf), fill_s
    most, free, stride = min(MAX_REPLICAS, k.num_micro_batches), devices.free, devices.stride
    for state in range(len(least)):
        if least[state] == math.inf:
            continue
        left = free[kind] - (state // stride[kind]) % (free[kind] + 1)
        replicas_behind = num_stages - 1 - row + devices.extra[state]
        for more in range(min(left, most - 1) + 1):
            held = in_flight(k.num_micro_batches, k.is_gpipe, more + 1, replicas_behind)
            if stage_bytes(k, start, stop, option, more + 1, held) > k.memory_bytes[option]:
                continue
            step_s, filled_s = append_stage(
                k, start, stop, option, more + 1, held, Built(next_kind, least[state], fill_s)
            )
            reached = state + more * stride[kind]
            if step_s < after[reached]:
                after[reached], given[reached] = step_s, more
    return after, filled_s


@checked
def provision_greedily(k: Any, stages: Any, num_stages: int, goal: Any, free: Any) -> None:
    """Writes good replicas; they lack memory or miss the floor where none are found that do not.

    Args:
        k: `KernelTables`.
        stages: See `provision_stages`.
        num_stages: Rows in use.
        goal: See `provision_stages`.
        free: (T,) devices beyond one for each stage; changed.
    """
    best = _feed_the_slowest(k, stages, num_stages, goal, free)
    while True:
        improved = _best_change(k, stages, num_stages, goal, free, best)
        if not improved < best * (1.0 - _LEAST_GAIN):
            break
        best = improved


@checked_helper
def _feed_the_slowest(k: Any, stages: Any, num_stages: int, goal: Any, free: Any) -> float:
    """One replica after the other for the stage that needs it most; leaves the best state."""
    best, best_replicas = math.inf, stages[:num_stages, 2].copy()
    while True:
        step_time_s, price, excess, needy = measure(stages, num_stages, k, goal, math.inf)
        cost = graded_cost(step_time_s, price, excess, goal)
        if cost < best:
            best = cost
            best_replicas[:] = stages[:num_stages, 2]
        option = stages[needy, 1]
        kind, size = k.class_of_option[option], k.devices_of_option[option]
        if free[kind] < size or stages[needy, 2] >= min(MAX_REPLICAS, k.num_micro_batches):
            break
        free[kind] -= size
        stages[needy, 2] += 1
    for row in range(num_stages):
        size = k.devices_of_option[stages[row, 1]]
        free[k.class_of_option[stages[row, 1]]] += size * (stages[row, 2] - best_replicas[row])
        stages[row, 2] = best_replicas[row]
    return best


@checked_helper
def _best_change(k: Any, stages: Any, num_stages: int, goal: Any, free: Any, best: float) -> float:
    """Makes the single change that helps most, if one does; returns the cost afterwards."""
    gains_at, loses_at, least = -1, -1, best
    most_replicas, used = min(MAX_REPLICAS, k.num_micro_batches), np.empty(k.num_classes, np.int64)
    for more in range(-1, num_stages):
        if more >= 0 and stages[more, 2] >= most_replicas:
            continue
        for fewer in range(-1, num_stages):
            if fewer == more or (fewer >= 0 and stages[fewer, 2] == 1):
                continue
            if more >= 0:
                kind = k.class_of_option[stages[more, 1]]
                room = free[kind]
                if fewer >= 0:
                    if k.class_of_option[stages[fewer, 1]] != kind:
                        continue
                    room += k.devices_of_option[stages[fewer, 1]]
                if room < k.devices_of_option[stages[more, 1]]:
                    continue
                stages[more, 2] += 1
            if fewer >= 0:
                stages[fewer, 2] -= 1
            cost = limited_cost(stages, num_stages, k, used, goal, least)
            if more >= 0:
                stages[more, 2] -= 1
            if fewer >= 0:
                stages[fewer, 2] += 1
            if cost < least * (1.0 - _LEAST_GAIN):
                gains_at, loses_at, least = more, fewer, cost
    if gains_at >= 0:
        stages[gains_at, 2] += 1
        option = stages[gains_at, 1]
        free[k.class_of_option[option]] -= k.devices_of_option[option]
    if loses_at >= 0:
        stages[loses_at, 2] -= 1
        option = stages[loses_at, 1]
        free[k.class_of_option[option]] += k.devices_of_option[option]
    return least
