"""Kernels of DT-FM's cost: bottleneck matchings between groups, and the open tour over them."""

from __future__ import annotations

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked, checked_helper

# So many groups are toured exactly, by the subsets that a tour has been to.
MOST_EXACT_GROUPS = 10


@checked
def bottleneck_matching(cost: Floats) -> tuple[float, Integers]:
    """The perfect matching whose largest cost is least.

    Row after row is matched over the path whose largest new cost is least.

    Args:
        cost: (k, k).

    Returns:
        The largest cost, and the row that each column is matched with (k,).
    """
    size = len(cost)
    row_of = np.full(size, -1)
    largest = -np.inf
    reach = np.empty(size)
    before = np.empty(size, np.int64)
    is_done = np.empty(size, np.bool_)
    for first in range(size):
        reach[:] = np.inf
        is_done[:] = False
        row, so_far, column = first, -np.inf, -1
        while row >= 0:
            nearest = -1
            for other in range(size):
                if is_done[other]:
                    continue
                step = max(so_far, cost[row, other])
                if step < reach[other]:
                    reach[other] = step
                    before[other] = column
                if nearest < 0 or reach[other] < reach[nearest]:
                    nearest = other
            column = nearest
            is_done[column] = True
            so_far, row = reach[column], row_of[column]
        largest = max(largest, so_far)
        while column >= 0:
            front = before[column]
            row_of[column] = first if front < 0 else row_of[front]
            column = front
    return largest, row_of


@checked_helper
def hop_between(activation_s: Floats, front: Integers, behind: Integers) -> tuple[float, float]:
    """Seconds between two groups: the largest and the mean of their bottleneck matching."""
    size = len(front)
    cost = np.empty((size, size))
    for row in range(size):
        for column in range(size):
            cost[row, column] = activation_s[front[row], behind[column]]
    largest, row_of = bottleneck_matching(cost)
    total = 0.0
    for column in range(size):
        total += cost[row_of[column], column]
    return largest, total / size


@checked
def group_sums(gradient_s: Floats, members: Integers) -> tuple[float, float]:
    """Seconds of a group's sums of gradients: its slowest member's, and the mean."""
    slowest, total = 0.0, 0.0
    for device in members:
        own = 0.0
        for other in members:
            own += gradient_s[device, other]
        slowest = max(slowest, own)
        total += own
    return slowest, total / len(members)


@checked
def open_tour(hop_s: Floats) -> tuple[float, Integers]:
    """The shortest path through all groups, wherever it begins: exact, over subsets.

    Returns:
        Its length, and the groups in its order (G,).
    """
    size = len(hop_s)
    length = np.full((1 << size, size), np.inf)
    before = np.full((1 << size, size), -1)
    for group in range(size):
        length[1 << group, group] = 0.0
    for subset in range(1, 1 << size):
        for last in range(size):
            own = length[subset, last]
            if own == np.inf:
                continue
            for new in range(size):
                if subset >> new & 1:
                    continue
                wider = subset | 1 << new
                if own + hop_s[last, new] < length[wider, new]:
                    length[wider, new] = own + hop_s[last, new]
                    before[wider, new] = last
    subset = (1 << size) - 1
    last = int(np.argmin(length[subset]))
    shortest = length[subset, last]
    order = np.empty(size, np.int64)
    for place in range(size - 1, -1, -1):
        order[place] = last
        front = before[subset, last]
        subset ^= 1 << last
        last = front
    return shortest, order


def tour_steps(num_groups: int) -> int:
    """About how many steps `best_tour` takes."""
    return num_groups**2 * (2**num_groups if num_groups <= MOST_EXACT_GROUPS else 20)


@checked
def path_length(hop_s: Floats, order: Integers) -> float:
    """Seconds of a tour in a given order."""
    length = 0.0
    for place in range(len(order) - 1):
        length += hop_s[order[place], order[place + 1]]
    return length


@checked
def improved_tour(hop_s: Floats, start: Integers) -> tuple[float, Integers]:
    """A tour that no reversal of a part of it makes shorter, from an order on."""
    size = len(hop_s)
    order = start.copy()
    is_better = True
    while is_better:
        is_better = False
        for first in range(size - 1):
            for last in range(first + 1, size):
                gain = 0.0
                if first > 0:
                    gain += hop_s[order[first - 1], order[first]]
                    gain -= hop_s[order[first - 1], order[last]]
                if last < size - 1:
                    gain += hop_s[order[last], order[last + 1]]
                    gain -= hop_s[order[first], order[last + 1]]
                if gain > 1e-12:
                    order[first : last + 1] = order[first : last + 1][::-1].copy()
                    is_better = True
    return path_length(hop_s, order), order


@checked_helper
def best_tour(hop_s: Floats, start: Integers) -> tuple[float, Integers]:
    """The shortest tour of few groups; of many, one from an order on that reversals cannot mend."""
    if len(hop_s) <= MOST_EXACT_GROUPS:
        return open_tour(hop_s)
    return improved_tour(hop_s, start)


@checked
def spanning_tree(hop_s: Floats) -> float:
    """The least tree through all groups, which no tour is shorter than."""
    size = len(hop_s)
    reach = hop_s[0].copy()
    is_done = np.zeros(size, np.bool_)
    is_done[0] = True
    length = 0.0
    for _ in range(size - 1):
        nearest = -1
        for group in range(size):
            if not is_done[group] and (nearest < 0 or reach[group] < reach[nearest]):
                nearest = group
        length += reach[nearest]
        is_done[nearest] = True
        for group in range(size):
            reach[group] = min(reach[group], hop_s[nearest, group])
    return length
