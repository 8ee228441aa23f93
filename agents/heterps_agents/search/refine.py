"""Better placements by small changes: cuts that move, and a descent over whole stages.

A decoded placement lets every stage grow as far as its target allows, so what is left over falls to
the front. Moving cuts by a few layers evens that out. The descent also changes the class or the
replicas of a stage, hands a device to another stage, swaps, joins and splits stages, and moves the
cuts after each such change. Both have no randomness, never lose, and take tens of microseconds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.search.stage_changes import change_stages, copy_stages, num_changes
from heterps_envs.closed_form.objective import (
    STEP_TIME,
    code_cost,
    limited_cost,
    read_stages,
    search_cost,
    write_code,
)
from heterps_envs.compiled import FALSE, checked, uncounted, uncounted_helper
from heterps_envs.environments.stage.packed import StageProblems, kernel_of

# How far a cut is moved at once, in layers, nearest first.
_MOVES = np.array([1, -1, 2, -2, 3, -3, 4, -4])
# A move must gain so much, so that rounding ends no climb late.
_GAIN = 1 - 1e-9
# Cuts are moved after a change only where it costs at most so much more than what is known.
_PROMISING = 1.5
_ENDLESS: Any = np.int64(1 << 60)
# Evaluations of the descent from one placement.
_MOST_EACH = 2000


def refine(
    problems: StageProblems,
    step_time_s: NDArray[np.float64],
    bottleneck_s: NDArray[np.float64],
    code: NDArray[np.int32],
) -> None:
    """Moves the cuts of placements, in place, while that shortens their steps.

    Args:
        problems: N problems.
        step_time_s: (N, P) of P placements of each; inf where there is none, which stays.
        bottleneck_s: (N, P) their bottlenecks, written.
        code: (N, P, L).
    """
    for row in range(problems.num_problems):
        if np.isfinite(step_time_s[row]).any():
            layers = int(problems.num_layers[row])
            codes = np.ascontiguousarray(code[row, :, :layers])
            _refine_all(kernel_of(problems, row), step_time_s[row], bottleneck_s[row], codes)
            code[row, :, :layers] = codes


@checked
def _refine_all(k: Any, step_time_s: Any, bottleneck_s: Any, codes: Any) -> None:
    stages, used = np.empty((k.num_layers, 3), np.int64), np.empty(k.num_classes, np.int64)
    for index in range(len(step_time_s)):
        if step_time_s[index] < math.inf:
            count = read_stages(codes[index], stages)
            cost = search_cost(stages, count, k, used, STEP_TIME)
            step_time_s[index], _ = climb(k, STEP_TIME, stages, count, used, cost, _ENDLESS)
            bottleneck_s[index] = step_time_s[index] - fill_s(k, stages, count)
            codes[index] = 0
            write_code(stages, count, codes[index])


@uncounted
def fill_s(k: Any, stages: Any, count: int) -> float:
    """Fill of all stages, see `heterps_envs.environments.stage.state`."""
    fill, start = 0.0, 0
    for row in range(count):
        stop, kind = stages[row, 0], stages[row, 1]
        fill += k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        if row + 1 < count:
            following = stages[row + 1, 1]
            transfer = k.output_bytes[stop - 1] * k.inverse_bandwidth_s_per_byte[kind, following]
            fill += 2.0 * (k.latency_s[kind, following] + transfer)
        start = stop
    return fill


@uncounted_helper
def climb(
    k: Any,
    goal: Any,
    stages: Any,
    count: int,
    used: Any,
    best: float,
    most: int,
) -> tuple[float, int]:
    """Moves cuts while that helps; returns the cost and the evaluations, at most `most`."""
    improved, spent = True, 0
    while improved:
        improved = False
        for row in range(count - 1):
            for move in _MOVES:
                start = stages[row - 1, 0] if row > 0 else 0
                old = stages[row, 0]
                if not start < old + move < stages[row + 1, 0]:
                    continue
                if spent >= most:
                    return best, spent
                stages[row, 0] = old + move
                cost = limited_cost(stages, count, k, used, goal, best)
                spent += 1
                if cost < best * _GAIN:
                    best, improved = cost, True
                else:
                    stages[row, 0] = old
    return best, spent


@uncounted_helper
def descend(
    k: Any,
    goal: Any,
    stages: Any,
    count: int,
    cost: float,
    most: int,
    trial: Any,
    used: Any,
) -> tuple[int, float, int]:
    """Changes stages one way after the other, each with its best cuts, until none helps.

    Args:
        k: `KernelTables`.
        goal: `heterps_envs.closed_form.objective.Goal`.
        stages: (L + 1, 3) int64, changed in place.
        count: Stages in use.
        cost: Of these stages.
        most: Evaluations.
        trial: (L + 1, 3) int64 scratch.
        used: (T,) int64 scratch.

    Returns:
        Stages in use, their cost, and the evaluations.
    """
    cost, spent = climb(k, goal, stages, count, used, cost, most)
    index, since = 0, 0
    while since < num_changes(k, count) and spent < most:
        index, since = (index + 1) % num_changes(k, count), since + 1
        copy_stages(stages, count, trial)
        changed = change_stages(k, trial, count, index, used)
        if changed == 0:
            continue
        most_cost = _PROMISING * cost
        new = limited_cost(trial, changed, k, used, goal, most_cost)
        spent += 1
        if new > most_cost:
            continue
        new, more = climb(k, goal, trial, changed, used, new, most - spent)
        spent += more
        if new < cost * _GAIN:
            cost, count, since = new, changed, 0
            copy_stages(trial, count, stages)
    return count, cost, spent


class Elite(NamedTuple):
    """The best E placements so far, all of different cost, the best first.

    Attributes:
        stages: (E, L + 1, 3) see `heterps_envs.closed_form.objective.read_stages`.
        num_stages: (E,) stages in use; 0 where there is no placement.
        cost: (E,) inf where there is no placement.
        is_done: (E,) for the user: what need not be looked at again.
    """

    stages: NDArray[np.int64]
    num_stages: NDArray[np.int64]
    cost: NDArray[np.float64]
    is_done: NDArray[np.bool_]


def no_elite(size: int, layers: int) -> Elite:
    """Room for `size` placements."""
    return Elite(
        np.zeros((size, layers + 1, 3), np.int64),
        np.zeros(size, np.int64),
        np.full(size, np.inf),
        np.zeros(size, np.bool_),
    )


@checked
def admit(elite: Elite, stages: Any, count: int, cost: float, is_done: bool) -> None:
    """Puts a placement among the best, if it is one of them."""
    place = len(elite.cost) - 1
    if not cost < elite.cost[place] or (np.abs(elite.cost - cost) <= 1e-9 * cost).any():
        return
    while place > 0 and cost < elite.cost[place - 1]:
        elite.stages[place], elite.num_stages[place] = (
            elite.stages[place - 1],
            elite.num_stages[place - 1],
        )
        elite.cost[place], elite.is_done[place] = elite.cost[place - 1], elite.is_done[place - 1]
        place -= 1
    elite.stages[place, :count], elite.num_stages[place] = stages[:count], count
    elite.cost[place], elite.is_done[place] = cost, is_done


@checked
def descend_best(
    k: Any,
    goal: Any,
    step_time_s: Any,
    codes: Any,
    most_placements: int,
    most: int,
    elite: Elite,
) -> int:
    """Improves the best of many placements.

    Of several with the same classes and replicas in the same order only the best is improved.

    Args:
        k: `KernelTables`.
        goal: `heterps_envs.closed_form.objective.Goal`.
        step_time_s: (P,) inf where there is no placement.
        codes: (P, L) int32.
        most_placements: How many are improved.
        most: Evaluations.
        elite: Gets what is found.

    Returns:
        The evaluations.
    """
    costs, spent = np.full(len(codes), np.inf), 0
    for index in range(len(codes)):
        if step_time_s[index] < np.inf and spent < most:
            costs[index] = code_cost(codes[index], k, goal)
            spent += 1
    shapes, seen = np.empty(most_placements, np.int64), 0
    stages = np.empty((k.num_layers + 1, 3), np.int64)
    trial = np.empty_like(stages)
    used = np.empty(k.num_classes, np.int64)
    for index in np.argsort(costs, kind="mergesort"):
        if seen == most_placements or costs[index] == np.inf:
            break
        count = read_stages(codes[index], stages)
        shapes[seen] = _shape(stages, count)
        if (shapes[:seen] == shapes[seen]).any():
            continue
        seen += 1
        left = min(_MOST_EACH, most - spent)
        count, cost, more = descend(k, goal, stages, count, costs[index], left, trial, used)
        spent += more
        admit(elite, stages, count, cost, FALSE)
    return spent


@uncounted_helper
def _shape(stages: Any, count: int) -> int:
    """One number for the classes and replicas in order."""
    shape = count
    for row in range(count):
        shape = (shape * 1_000_003 + stages[row, 1]) * 1_000_003 + stages[row, 2]
    return shape
