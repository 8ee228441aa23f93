"""HARP's cut of a model over islands of equal devices: the least cost, by dynamic programming.

For a period, `kernels.least_fills` finds the least fill of a pipeline whose stages keep it. A
longer period never has a longer fill, so of a range of periods none costs less than the shortest
of them with the fill of the longest: ranges that cannot be better are left out, and the answer is
exact. Orders of islands are all tried where there are few; of many, some, and swaps in the best.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.harp.cost import launch_count, step_s
from heterps_agents.systems.harp.kernels import Cuts, Islands, least_fills, message_s
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.cost_tables import CostTables

# So many islands are tried in every order: 120 of them.
MOST_ISLANDS_IN_ALL_ORDERS = 5
# Between two periods that are tried, as a part of them; the shortest one, where nothing takes time.
_STEP, _SHORTEST_S = 0.005, 1e-12
# What is less by no more than rounding is not less.
_LESS = 1 - 1e-12


class HarpStage(NamedTuple):
    """A stage of the answer.

    Attributes:
        start: Its first layer.
        stop: The layer behind it.
        device_class: Its island.
        replicas: Devices of it.
        launched: Micro-batches that each of them holds in flight.
    """

    start: int
    stop: int
    device_class: int
    replicas: int
    launched: int


class HarpPlan(NamedTuple):
    """Stages from front to back, and seconds of a step by HARP's cost."""

    stages: tuple[HarpStage, ...]
    seconds: float


class _Best(NamedTuple):
    seconds: float
    order: tuple[int, ...]
    period_s: float


def plan_chain(tables: CostTables, budget: Budget) -> HarpPlan | None:
    """The pipeline with the least cost; None where none fits.

    Args:
        tables: Layers and classes of devices, which are its islands.
        budget: An evaluation is a period in an order; the first one is always looked at.
    """
    choices = periods(islands_of(tables, tuple(range(tables.num_classes))))
    best: _Best | None = None
    looked_at: set[bytes] = set()
    for order in island_orders(tables):
        best = _best_period(tables, order, choices, best, budget, looked_at)
    is_better = tables.num_classes > MOST_ISLANDS_IN_ALL_ORDERS
    while is_better and best is not None:
        before = best
        for order in _with_two_swapped(before.order):
            best = _best_period(tables, order, choices, best, budget, looked_at)
        is_better = best is not before
    if best is None:
        return None
    islands = islands_of(tables, best.order)
    cuts = least_fills(islands, best.period_s)
    stages = tuple(_stages(islands, cuts, best))
    return HarpPlan(stages, best.seconds)


def island_orders(tables: CostTables) -> Iterator[tuple[int, ...]]:
    """Orders of the islands: all of them, or by memory and by speed up and down."""
    count = tables.num_classes
    if count <= MOST_ISLANDS_IN_ALL_ORDERS:
        yield from permutations(range(count))
        return
    compute_s = tables.compute_s.sum(0)
    for values in (-tables.memory_bytes, tables.memory_bytes, compute_s, -compute_s):
        yield tuple(np.argsort(values, kind="stable").tolist())


def _with_two_swapped(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for first, second in combinations(range(len(order)), 2):
        swapped = list(order)
        swapped[first], swapped[second] = order[second], order[first]
        yield tuple(swapped)


def islands_of(tables: CostTables, order: tuple[int, ...]) -> Islands:
    """The arrays of the kernel, with islands in an order."""
    kept = list(order)
    latency_s = tables.latency_s[np.ix_(kept, kept)]
    inverse = tables.inverse_bandwidth_s_per_byte[np.ix_(kept, kept)]
    most = min(int(tables.device_count.max()), tables.num_micro_batches)
    doubled = [2**power for power in range(most.bit_length())]
    sizes = {*doubled, *(min(int(count), most) for count in tables.device_count)}
    return Islands(
        num_micro_batches=tables.num_micro_batches,
        is_gpipe=tables.is_gpipe,
        compute_s=_in_front(tables.compute_s[:, kept]),
        state_bytes=_in_front(tables.state_bytes),
        activation_bytes=_in_front(tables.activation_bytes),
        output_bytes=np.concatenate([[0.0], tables.output_bytes]),
        memory_bytes=tables.memory_bytes[kept],
        device_count=tables.device_count[kept],
        sizes=np.array(sorted(sizes), np.int64),
        latency_s=latency_s + latency_s.T,
        inverse_bandwidth=inverse + inverse.T,
        slower_inverse_bandwidth=np.maximum(inverse, inverse.T),
    )


def _in_front(values: Floats) -> Floats:
    """(L + 1, ...) sums of the layers in front."""
    sums = np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)])
    return np.ascontiguousarray(sums)


def periods(islands: Islands) -> Floats:
    """Every period that some stage or some link sets, the shortest first, and small steps between.

    Where memory is short, what stages may launch sets a period that is none of theirs.
    """
    compute_s = islands.compute_s
    start, stop = np.triu_indices(len(compute_s), 1)
    stages_s = (compute_s[stop] - compute_s[start]).ravel()
    links_s = np.outer(islands.output_bytes, islands.slower_inverse_bandwidth).ravel()
    found = np.outer(np.concatenate([stages_s, links_s]), 1 / islands.sizes).ravel()
    found = found[found > 0]
    if not len(found):
        return np.array([_SHORTEST_S])
    count = 2 + int(np.log(found.max() / found.min()) / _STEP)
    found = np.unique(np.concatenate([found, np.geomspace(found.min(), found.max(), count)]))
    # Sums of the same layers differ by rounding: of such the longest is kept.
    is_last = np.append(found[1:] > found[:-1] * (1 + 1e-9), True)
    return np.asarray(found[is_last])


def _best_period(
    tables: CostTables,
    order: tuple[int, ...],
    choices: Floats,
    best: _Best | None,
    budget: Budget,
    looked_at: set[bytes],
) -> _Best | None:
    """The best of an order's periods, if it is better than what there is.

    Of islands that are equal, with equal links, other orders are the same question: `looked_at`.
    """
    if looked_at and budget.is_exhausted:
        return best
    islands = islands_of(tables, order)
    asked = b"".join(np.asarray(each).tobytes() for each in islands)
    if asked in looked_at:
        return best
    looked_at.add(asked)
    number = islands.num_micro_batches

    def least_fill_s(index: int) -> float:
        nonlocal best
        budget.spend()
        fill_s = float(least_fills(islands, choices[index]).fill_s[0].min())
        seconds = step_s(float(choices[index]), fill_s, number)
        if np.isfinite(seconds) and (best is None or seconds < best.seconds * _LESS):
            best = _Best(seconds, order, float(choices[index]))
        return fill_s

    def last_useful(fill_s: float) -> int:
        """Of the periods that may be better with such a fill, the longest; -1 for none."""
        if best is None or number == 1:
            return len(choices) - 1
        longest_s = (best.seconds * _LESS - fill_s) / (number - 1)
        return int(np.searchsorted(choices, longest_s)) - 1

    # Ranges of periods, by what they cost at least: first, last, and the least fill of any.
    ranges: list[tuple[float, int, int, float]] = []

    def add(first: int, last: int, fill_s: float) -> None:
        if first <= last and np.isfinite(fill_s):
            least_s = step_s(float(choices[first]), fill_s, number)
            heapq.heappush(ranges, (least_s, first, last, fill_s))

    end = last_useful(float(np.diff(islands.compute_s, axis=0).min(1).sum()))
    if end >= 0:
        add(0, end - 1, least_fill_s(end))
    while ranges and not budget.is_exhausted:
        least_s, first, last, fill_s = heapq.heappop(ranges)
        assert best is not None, "a range has a fill, and so had the period behind it"
        if least_s >= best.seconds * _LESS:
            break
        # Where long periods of the range cost too much, the longest of the others says most.
        useful = max(first, min(last, last_useful(fill_s)))
        probe = useful if useful < last else (first + last) // 2
        add(first, probe - 1, least_fill_s(probe))
        add(probe + 1, useful, fill_s)
    return best


class _Cut(NamedTuple):
    """A stage on an island by its place in the order, and seconds behind it."""

    start: int
    stop: int
    island: int
    replicas: int
    behind_s: float


def _cuts_from_front(islands: Islands, cuts: Cuts) -> Iterator[_Cut]:
    """From front to back along the least fill."""
    num_layers = len(islands.compute_s) - 1
    island, used = np.unravel_index(int(cuts.fill_s[0].argmin()), cuts.fill_s[0].shape)
    start = 0
    while start < num_layers:
        place = start, int(island), int(used)
        stop, behind_s = int(cuts.stop[place]), 0.0
        if stop < num_layers:
            other, left = int(cuts.island[place]), int(cuts.used[place])
            behind_s = message_s(islands, stop, place[1], other) + cuts.fill_s[stop, other, left]
        yield _Cut(start, stop, place[1], int(cuts.replicas[place]), float(behind_s))
        start, island, used = stop, cuts.island[place], cuts.used[place]


def _stages(islands: Islands, cuts: Cuts, best: _Best) -> Iterator[HarpStage]:
    """With what they launch to keep the period, and no fewer than 1F1B where memory has room.

    Replicas that work at the same time send at the same time, and what they send queues up behind
    them, which no cost of means sees; the count of 1F1B has some slack for it.
    """
    num_micro_batches, is_gpipe = islands.num_micro_batches, islands.is_gpipe
    chain = list(_cuts_from_front(islands, cuts))
    for index, own in enumerate(chain):
        behind = sum(other.replicas for other in chain[index + 1 :])
        usual = in_flight(num_micro_batches, is_gpipe, own.replicas, behind)
        share = -(-num_micro_batches // own.replicas)
        least = min(share, launch_count(own.behind_s, best.period_s, own.replicas))
        launched = max(least, min(usual, _room(islands, own)))
        yield HarpStage(own.start, own.stop, best.order[own.island], own.replicas, launched)


def _room(islands: Islands, own: _Cut) -> int:
    """Micro-batches that a device of a stage has memory for; all, where they keep nothing."""
    state = islands.state_bytes[own.stop] - islands.state_bytes[own.start]
    kept = islands.activation_bytes[own.stop] - islands.activation_bytes[own.start]
    left = islands.memory_bytes[own.island] - state
    return int(left / kept) if kept > 0 else islands.num_micro_batches
