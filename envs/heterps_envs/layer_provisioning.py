"""Replicas for stages that are formed already: what follows the classes of all layers (numba).

Every stage begins with one replica. The stage that sets the step time (or the one that lacks most
memory) gets one more while its class has a free device; the best state on this way is kept. Then
single changes follow while one of them helps: one replica more, one fewer, or one moved to another
stage of the same class. A test compares that with all provisionings of small chains.

In HeterPS's cost model stages share no memory and no waiting, and there the optimum is exact
(`heterps_agents.provisioning`). In the closed form, replicas change what stages in front of them
hold in flight, and so their memory and waiting.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_envs.closed_form import (
    CUT_BIT,
    MAX_REPLICAS,
    REPLICA_SHIFT,
    KernelTables,
    append_stage,
    in_flight,
)

# Added to prices, so that among equally cheap placements (free devices) the faster one wins.
TIE_BREAK_USD_PER_HOUR = 1e-9
# Costs above these are no step times and no prices: too slow for the floor; lacks memory.
_TOO_SLOW, _LACKS_MEMORY = 1e9, 1e12
# A change must gain so much, or rounding would let two changes undo each other for ever.
_LEAST_GAIN = 1e-12


@njit(cache=True)
def form_stages(kinds: Any, num_layers: int, stages: Any) -> int:
    """Writes the runs of equal classes, front first, as rows (layer behind the last, class, 1).

    Args:
        kinds: (L,) class of each layer.
        num_layers: How many of them count.
        stages: (L, 3) int64 to write to.

    Returns:
        How many stages there are.
    """
    count = 0
    for layer in range(num_layers):
        if layer + 1 == num_layers or kinds[layer + 1] != kinds[layer]:
            stages[count, 0], stages[count, 1], stages[count, 2] = layer + 1, kinds[layer], 1
            count += 1
    return count


@njit(cache=True)
def write_stages(stages: Any, num_stages: int, code: Any) -> None:
    """Writes the code of stages, see `heterps_envs.closed_form`."""
    start = 0
    for row in range(num_stages):
        stop, kind, replicas = stages[row, 0], stages[row, 1], stages[row, 2]
        for layer in range(start, stop):
            code[layer] = kind | ((replicas - 1) << REPLICA_SHIFT)
        if row + 1 < num_stages and stages[row + 1, 1] == kind:
            code[stop - 1] |= CUT_BIT
        start = stop


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
    return _cost(step_time_s, price, excess, is_price, floor_s)  # type: ignore[no-any-return]


@njit(cache=True)
def provision_stages(
    k: Any, stages: Any, num_stages: int, is_price: bool, floor_s: float
) -> tuple[float, float, float]:
    """Writes good numbers of replicas into `stages`.

    Args:
        k: `KernelTables`.
        stages: (L, 3) int64, from `form_stages`; each class has a device for each of its stages.
        num_stages: Rows in use.
        is_price: Minimise price per hour times step time; otherwise the step time.
        floor_s: Longest step time that is allowed; inf for any.

    Returns:
        Step time in seconds, US dollars per hour, and the memory that its devices lack, as shares
        of a device (0 where all fits).
    """
    free = k.device_count.copy()
    for row in range(num_stages):
        free[stages[row, 1]] -= 1
    best = _feed_the_slowest(k, stages, num_stages, is_price, floor_s, free)
    while True:
        improved = _best_change(k, stages, num_stages, is_price, floor_s, free, best)
        if not improved < best * (1.0 - _LEAST_GAIN):
            break
        best = improved
    step_time_s, price, excess, _ = measure(k, stages, num_stages)
    return step_time_s, price, excess


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


@njit(cache=True)
def _provision_rows(kinds: Any, k: Any, is_price: bool, floor_s: float, codes: Any) -> None:
    stages = np.empty((k.num_layers, 3), np.int64)
    begun = np.empty(k.num_classes, np.int64)
    for row in range(len(kinds)):
        count = form_stages(kinds[row], k.num_layers, stages)
        begun[:] = 0
        for stage in range(count):
            begun[stages[stage, 1]] += 1
        if (begun <= k.device_count).all():
            provision_stages(k, stages, count, is_price, floor_s)
        write_stages(stages, count, codes[row])


def provision(
    kinds: NDArray[np.integer[Any]],
    kernel: KernelTables,
    is_price: bool = False,
    floor_s: float = math.inf,
) -> NDArray[np.int16]:
    """Replicas for placements that only say the class of each layer.

    Args:
        kinds: (N, L) class of each layer; consecutive layers of one class are a stage.
        kernel: Of the problem.
        is_price: Minimise price per hour times step time; otherwise the step time.
        floor_s: Longest step time that is allowed; inf for any.

    Returns:
        (N, L) int16 codes, see `heterps_envs.closed_form`; they may still lack memory, or devices
        where there are more stages than devices of a class. `evaluate` says so.
    """
    codes = np.zeros(kinds.shape, np.int16)
    _provision_rows(np.asarray(kinds, np.int64), kernel, is_price, floor_s, codes)
    return codes
