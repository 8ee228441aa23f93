"""A search by depth through all sets of stages: the next stage begins where one in front ends.

All stages that begin with a layer are chosen before those that begin with a later one. So what is
in front of a stage is known when it is chosen, and layers in front of the cut get no more owners.
Worths of layers, as in `covering`, end the search early: what is left to do is worth more than all
devices that are left can earn with what begins at the cut or behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.compiled import allocating, allocating_helper, uncounted_helper
from heterps_envs.step_bounds.whole_plans.amounts import find_state, hoped_for
from heterps_envs.step_bounds.whole_plans.leaf import survives
from heterps_envs.step_bounds.whole_plans.staged import FIRST, OPTION, STOP, find_ways_in

NONE, SOME, UNKNOWN = 0, 1, 2
# What it takes to look at a whole set of stages, for each of them.
STEPS_OF_LEAF = 3
_DONE = 1e-9


@allocating
def find_stages(
    n: Any, staged: Any, step_s: float, shares: Any, worth: Any, most_steps: int
) -> tuple[int, int, int]:
    """Looks for stages that may do all in so many seconds, and writes them to `staged`.

    Args:
        n: `Needs`.
        staged: `Staged`.
        step_s: T.
        shares: (O, L, L) see `shares.most_shares`.
        worth: (L,) any worths; good ones make the search short.
        most_steps: That it may take.

    Returns:
        `SOME`, `NONE`, or `UNKNOWN` where the steps are not enough; the stages; the steps taken.
    """
    num_layers = len(worth)
    most_stages = len(staged.in_s) - 1
    earned = _earned(n, shares, worth)
    left = np.ones((most_stages + 1, num_layers))
    free = np.zeros((most_stages + 1, len(n.num_devices)), np.int64)
    for kind in range(len(n.num_devices)):
        free[0, kind] = n.num_devices[kind]
    # What is tried next at each depth: a stage, as in `staged.spans`.
    at = np.zeros((most_stages + 1, 3), np.int64)
    depth, step = 0, 0
    while step < most_steps:
        step += 1
        if not _advance(n, staged, depth, at, left, free):
            if depth == 0:
                return NONE, 0, step
            depth -= 1
            continue
        option, first, stop = at[depth]
        for column in range(3):
            staged.spans[depth, column] = at[depth, column]
        find_ways_in(n, staged, depth)
        find_state(n, staged, depth)
        share = shares[option, first, stop - 1]
        amount = hoped_for(n, staged, step_s, depth, share) if share > 0 else share
        if amount <= 0:
            if amount < 0:
                at[depth, STOP] = num_layers
            continue
        for layer in range(num_layers):
            is_own = first <= layer < stop
            left[depth + 1, layer] = left[depth, layer] - (amount / n.total if is_own else 0.0)
        able = 0.0
        for kind in range(len(n.num_devices)):
            free[depth + 1, kind] = free[depth, kind]
            if kind == n.class_of[option]:
                free[depth + 1, kind] -= n.degree[option]
            able += free[depth + 1, kind] * earned[first, kind]
        if _worth_left(left[depth + 1], worth) > able + _DONE:
            continue
        depth += 1
        if _is_complete(staged, depth, left[depth]):
            step += STEPS_OF_LEAF * depth
            if survives(n, staged, step_s, depth):
                return SOME, depth, step
        at[depth, OPTION], at[depth, FIRST], at[depth, STOP] = option, first, stop - 1
    return UNKNOWN, 0, step


@uncounted_helper
def _advance(n: Any, staged: Any, depth: int, at: Any, left: Any, free: Any) -> bool:
    """Goes on to the next stage at a depth; False: there is none."""
    num_layers, num_options = len(staged.owners), len(n.class_of)
    option, cut, stop = at[depth]
    stop += 1
    while True:
        if stop > num_layers:
            option, stop = option + 1, cut + 1
        if option < num_options:
            if n.degree[option] <= free[depth, n.class_of[option]]:
                break
            stop = num_layers + 1
            continue
        # What begins here is chosen. Stages behind the next cut do nothing in front of it.
        following = num_layers
        for stage in range(depth):
            end = staged.spans[stage, STOP]
            if end > cut:
                following = min(following, end)
        is_first = depth == 0 or staged.spans[depth - 1, FIRST] < cut
        if is_first or following == num_layers or not _is_done(left[depth], following):
            return False
        option, cut, stop = 0, following, following + 1
    at[depth, OPTION], at[depth, FIRST], at[depth, STOP] = option, cut, stop
    return True


@uncounted_helper
def _is_done(left: Any, stop: int) -> bool:
    most = 0.0
    for layer in range(stop):
        most = max(most, left[layer])
    return most <= _DONE


@uncounted_helper
def _is_complete(staged: Any, count: int, left: Any) -> bool:
    """Whether each stage's end is the last layer's, or where another one begins."""
    num_layers, cut = len(left), staged.spans[count - 1, FIRST]
    for stage in range(count):
        stop = staged.spans[stage, STOP]
        if cut < stop < num_layers:
            return False
    return bool(_is_done(left, num_layers))


@allocating_helper
def _earned(n: Any, shares: Any, worth: Any) -> Any:
    """(L, T) what a device earns at most with a range that begins with a layer or behind it."""
    num_options, num_layers = shares.shape[:2]
    earned = np.zeros((num_layers, len(n.num_devices)))
    for first in range(num_layers - 1, -1, -1):
        for kind in range(len(n.num_devices)):
            earned[first, kind] = earned[min(first + 1, num_layers - 1), kind]
        for option in range(num_options):
            kind, behind = n.class_of[option], 0.0
            for last in range(first, num_layers):
                share = shares[option, first, last]
                if share < 0:
                    break
                behind += worth[last]
                value = share * behind / n.degree[option]
                earned[first, kind] = max(earned[first, kind], value)
    return earned


@uncounted_helper
def _worth_left(left: Any, worth: Any) -> float:
    total = 0.0
    for layer in range(len(left)):
        total += max(left[layer], 0.0) * worth[layer]
    return total
