"""Divides the groups of two devices anew, almost in the best way there is (numba).

All ways to divide them are paths through `heterps_agents.splits.border_states`, each with two
loads. A sweep over the layers keeps, for every state and every cell of the first load, the least
second one. Repeated over pairs of devices this is a local search whose step is a small exact
solver: it crosses the plateaus on which single moves of many small operators get lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from heterps_agents.splits.border_states import states_along
from heterps_agents.splits.groups import GroupGraph
from heterps_agents.splits.search import NORM, Devices, fits, loads_of
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked

NUM_CELLS = 300
MAX_PAIR_STATES = 60_000
IMPROVEMENT = 1e-9


def resplit_pairs(
    graph: GroupGraph,
    devices: Devices,
    assignment: Integers,
    order: Integers,
    is_over: Callable[[], bool],
) -> Integers:
    """Divides pairs of devices anew until no pair gets better.

    Args:
        graph: The groups.
        devices: What they are on.
        assignment: (G,) device of each group; must fit.
        order: Groups in an order in which few nets are open, see `border_states.narrow_order`.
        is_over: Asked before every pair; True ends the search.
    """
    best = assignment.copy()
    loads = loads_of(graph, devices, best)
    accelerators = devices.num_accelerators
    tried: set[tuple[int, int]] = set()
    while True:
        pairs = [
            pair
            for pair in itertools.combinations(np.argsort(-loads).tolist(), 2)
            if pair not in tried and min(pair) < accelerators
        ]
        if not pairs or loads.max() <= 0 or is_over():
            return best
        a, b = pairs[0]
        tried |= {(a, b), (b, a)}
        a, b = min(a, b), max(a, b)
        limit_s = float(max(loads[a], loads[b]))
        found = _resplit(graph, devices, best, order, a, b, limit_s) if limit_s > 0 else None
        if found is None:
            continue
        new_loads = loads_of(graph, devices, found)
        if _norm(new_loads) < _norm(loads) * (1 - IMPROVEMENT) and fits(graph, devices, found):
            best, loads = found, new_loads
            tried = {pair for pair in tried if not {a, b} & set(pair)} | {(a, b), (b, a)}


def _norm(loads: Floats) -> float:
    largest = loads.max()
    return float(largest * ((loads / largest) ** NORM).sum() ** (1 / NORM))


def _resplit(
    graph: GroupGraph,
    devices: Devices,
    assignment: Integers,
    order: Integers,
    a: int,
    b: int,
    limit_s: float,
) -> Integers | None:
    """The assignment with the groups of `a` (an accelerator) and `b` divided anew."""
    both = [int(group) for group in order if assignment[group] in (a, b)]
    is_cpu = b >= devices.num_accelerators
    if len(both) < 2:
        return None
    states = states_along(graph, both, graph.net_s > 0, MAX_PAIR_STATES)
    if states is None:
        return None
    b_s = graph.cpu_s if is_cpu else graph.accelerator_s
    taken = _divide(
        states, graph.accelerator_s[both], b_s[both], is_cpu, limit_s * (1 + 1e-12), NUM_CELLS
    )
    if len(taken) == 0:
        return None
    found = assignment.copy()
    found[both] = np.where(taken, a, b)
    return found


@checked
def _divide(s: Any, a_s: Any, b_s: Any, is_cpu: bool, limit_s: float, num_cells: int) -> Any:
    """(n,) whether each group goes to the first device; empty where none is within the limit."""
    groups = len(a_s)
    scale = num_cells / limit_s
    size = 1 << 16
    parent, choice = np.empty(size, np.int32), np.empty(size, np.bool_)
    state, first_s, second_s = np.zeros(1, np.int64), np.zeros(1), np.zeros(1)
    begin, stop = 0, 1
    for layer in range(groups):
        base, width = s.first[layer + 1], s.first[layer + 2] - s.first[layer + 1]
        least_s = np.full((width, num_cells + 1), np.inf)
        at_s = np.empty((width, num_cells + 1))
        come_from = np.empty((width, num_cells + 1), np.int32)
        for label in range(len(state)):
            for take in range(2):
                now_a = first_s[label] + s.in_s[state[label], take]
                now_b = second_s[label]
                if not is_cpu:
                    now_b += s.out_s[state[label], take]
                if take == 1:
                    now_a += a_s[layer]
                else:
                    now_b += b_s[layer]
                if now_a <= limit_s and now_b <= limit_s:
                    row = s.next_state[state[label], take] - base
                    cell = int(now_a * scale)
                    if now_b < least_s[row, cell]:
                        least_s[row, cell], at_s[row, cell] = now_b, now_a
                        come_from[row, cell] = 2 * label + take
        count = 0
        room = width * (num_cells + 1)
        if stop + room > size:
            size = 2 * size + room
            parent = np.concatenate((parent, np.empty(size - len(parent), np.int32)))
            choice = np.concatenate((choice, np.empty(size - len(choice), np.bool_)))
        state, first_s, second_s = np.empty(room, np.int64), np.empty(room), np.empty(room)
        for row in range(width):
            least = np.inf
            for cell in range(num_cells + 1):
                if least_s[row, cell] < least:
                    least = least_s[row, cell]
                    state[count], first_s[count], second_s[count] = (
                        base + row,
                        at_s[row, cell],
                        least,
                    )
                    parent[stop + count] = begin + come_from[row, cell] // 2
                    choice[stop + count] = come_from[row, cell] % 2 == 1
                    count += 1
        state, first_s, second_s = state[:count], first_s[:count], second_s[:count]
        begin, stop = stop, stop + count
    if stop == begin:
        return np.zeros(0, np.bool_)
    cost = (first_s / limit_s) ** NORM + (second_s / limit_s) ** NORM
    label = begin + int(np.argmin(cost))
    taken = np.zeros(groups, np.bool_)
    for layer in range(groups - 1, -1, -1):
        taken[layer] = choice[label]
        label = parent[label]
    return taken
