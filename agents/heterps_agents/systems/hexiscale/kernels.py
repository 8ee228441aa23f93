"""The compiled half of the partitions: passes of exchanges between two parts of a graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked, checked_helper

# Exchanges that a pass makes without a new best before it ends.
_MOST_UPHILL = 48
# What is no gain but rounding.
_NOTHING = 1e-12


class Balance(NamedTuple):
    """What two parts ought to be.

    Attributes:
        targets: (2, 2) of each part, its speed and its memory.
        weight: (2,) what a part's squared deviation costs.
        fewest: (2,) devices of each part at least.
        cut: What a byte per second of a cut link costs.
    """

    targets: Floats
    weight: Floats
    fewest: Integers
    cut: float


@checked
def deviation(speed: float, memory: float, targets: Floats) -> float:
    """Mean square of what a part has more or less of speed and memory, over its targets."""
    faster, larger = speed / targets[0] - 1, memory / targets[1] - 1
    return float((faster * faster + larger * larger) / 2)


@checked
def exchange(
    one: Integers, other: Integers, bandwidth: Floats, weights: Floats, balance: Balance
) -> float:
    """Passes of exchanges between two parts (U,), which are changed; returns what they gain.

    In a pass the best exchange, of one device each or of one alone, is made again and again, also
    where it costs; devices that have moved stay. What follows the best moment is undone.
    """
    # Kinds that neither part has take no part.
    kinds = np.flatnonzero(one + other)
    few_one, few_other, few_weights = one[kinds], other[kinds], weights[:, kinds]
    few_bandwidth = np.empty((len(kinds), len(kinds)))
    for row, kind in enumerate(kinds):
        few_bandwidth[row] = bandwidth[kind][kinds]
    gained, gain = 0.0, 1.0
    while gain > _NOTHING:
        gain = _pass(few_one, few_other, few_bandwidth, few_weights, balance)
        gained += gain
    one[kinds], other[kinds] = few_one, few_other
    return gained


@checked_helper
def _pass(
    one: Integers, other: Integers, bandwidth: Floats, weights: Floats, balance: Balance
) -> float:
    free_one, free_other = one.copy(), other.copy()
    to_one, to_other = bandwidth @ one.astype(np.float64), bandwidth @ other.astype(np.float64)
    most = int(one.sum() + other.sum())
    made = np.empty((most, 2), np.int64)
    cost = best = 0.0
    num_made = num_kept = 0
    while num_made < most and num_made - num_kept < _MOST_UPHILL:
        change, goes, comes = _best_exchange(
            one, other, free_one, free_other, to_one, to_other, bandwidth, weights, balance
        )
        if goes < 0 and comes < 0:
            break
        if goes >= 0:
            free_one[goes] -= 1
            _move(one, other, to_one, to_other, bandwidth, goes)
        if comes >= 0:
            free_other[comes] -= 1
            _move(other, one, to_other, to_one, bandwidth, comes)
        made[num_made] = goes, comes
        num_made += 1
        cost += change
        if cost < best - _NOTHING:
            best, num_kept = cost, num_made
    for goes, comes in made[num_kept:num_made]:
        if goes >= 0:
            other[goes] -= 1
            one[goes] += 1
        if comes >= 0:
            one[comes] -= 1
            other[comes] += 1
    return -best


@checked_helper
def _best_exchange(
    one: Integers,
    other: Integers,
    free_one: Integers,
    free_other: Integers,
    to_one: Floats,
    to_other: Floats,
    bandwidth: Floats,
    weights: Floats,
    balance: Balance,
) -> tuple[float, int, int]:
    """The exchange that costs least: what it changes, and the kinds that go and come; -1: none."""
    size = len(one)
    count_one, count_other = one.sum(), other.sum()
    speed_one, memory_one = (weights[0] * one).sum(), (weights[1] * one).sum()
    speed_other, memory_other = (weights[0] * other).sum(), (weights[1] * other).sum()
    before = balance.weight[0] * deviation(speed_one, memory_one, balance.targets[0])
    before += balance.weight[1] * deviation(speed_other, memory_other, balance.targets[1])
    least, best_goes, best_comes = np.inf, -1, -1
    for goes in range(-1, size):
        if goes >= 0 and free_one[goes] == 0:
            continue
        for comes in range(-1, size):
            if comes == goes or (comes >= 0 and free_other[comes] == 0):
                continue
            if comes < 0 and count_one <= balance.fewest[0]:
                continue
            if goes < 0 and count_other <= balance.fewest[1]:
                continue
            cut = speed = memory = 0.0
            if goes >= 0:
                cut += to_one[goes] - bandwidth[goes, goes] - to_other[goes]
                speed -= weights[0, goes]
                memory -= weights[1, goes]
            if comes >= 0:
                cut += to_other[comes] - bandwidth[comes, comes] - to_one[comes]
                speed += weights[0, comes]
                memory += weights[1, comes]
            if goes >= 0 and comes >= 0:
                cut += 2 * bandwidth[goes, comes]
            after = balance.weight[0] * deviation(
                speed_one + speed, memory_one + memory, balance.targets[0]
            )
            after += balance.weight[1] * deviation(
                speed_other - speed, memory_other - memory, balance.targets[1]
            )
            change = balance.cut * cut + after - before
            if change < least - _NOTHING:
                least, best_goes, best_comes = change, goes, comes
    return least, best_goes, best_comes


@checked_helper
def _move(
    source: Integers,
    target: Integers,
    to_source: Floats,
    to_target: Floats,
    bandwidth: Floats,
    kind: int,
) -> None:
    """Moves a device, and with it the bandwidths that lead to either part."""
    source[kind] -= 1
    target[kind] += 1
    to_source -= bandwidth[kind]
    to_target += bandwidth[kind]
