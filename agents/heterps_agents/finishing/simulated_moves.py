"""Small moves on the simulator: better placements than the closed form can tell apart.

From the best placement that was simulated: cuts that move by a layer or two, and every small change
of stages (`heterps_agents.search.stage_changes`), with the cuts that suit it by the closed form.
Those that the closed form likes best are simulated, a few at a time; the next moves begin at the
best placement that has not been the beginning of any.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heterps_agents.finishing.simulated_costs import Simulated, SimulatedCosts
from heterps_agents.search.refine import climb
from heterps_agents.search.stage_changes import (
    change_stages,
    copy_stage,
    copy_stages,
    num_changes,
)
from heterps_envs.arrays import Code, Floats
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import Goal, limited_cost, read_stages, write_code
from heterps_envs.compiled import checked, uncounted_helper
from heterps_envs.simulator.plan_bound import CLOSE

# Moves begin at placements within this factor of the best, by the simulator.
NEAR = 1.03
# Moves are simulated that cost at most so much more than where they begin, by the closed form.
PROMISING = 1.2
# Of one beginning at a time, the best by the closed form.
TRIED_EACH = 10
# So many in turn without a better one end it.
PATIENCE = 60
# The same of a descent from another placement than the best.
DESCENT_PATIENCE = 20
# Evaluations of the closed form for the moves of one beginning.
MOST_EVALUATIONS = 20_000
_SHIFTS = np.array([1, -1, 2, -2])
_MOST_MOVES = 4096


def improve(costs: SimulatedCosts, kernel: KernelTables, goal: Goal, bound: float) -> None:
    """Simulates moves until the limit of simulations, or until many in turn were no better.

    Args:
        costs: Holds at least one placement, and gets the others.
        kernel: Cost tables.
        goal: What to minimise.
        bound: No plan costs less, simulated. (The optimum of the closed form is no such bound:
            sums of gradients may overlap with passes.)
    """
    begun: set[bytes] = set()
    since, least = 0, math.inf
    while since < PATIENCE and not costs.is_exhausted:
        ranked = costs.best_first()
        best = ranked[0].cost
        if best <= bound * CLOSE:
            return
        if best < least:
            since, least = 0, best
        near = [entry for entry in ranked if entry.cost <= best * NEAR]
        start = next((entry for entry in near if entry.code.tobytes() not in begun), None)
        if start is None:
            return
        listed = moves(start.code, kernel, goal)
        untried = [code for code in listed if code.tobytes() not in costs.found]
        if len(untried) <= TRIED_EACH:
            begun.add(start.code.tobytes())
        for code in untried[:TRIED_EACH]:
            if costs.is_exhausted:
                return
            since += 1
            if costs.add(code).cost < start.cost:
                break


def descend(costs: SimulatedCosts, kernel: KernelTables, goal: Goal, start: Simulated) -> None:
    """Simulates moves from one placement, and from what was better, until some were no better.

    `improve` stays near the best of all; at the bottom of another slope may be something better.
    """
    since = 0
    while since < DESCENT_PATIENCE and not costs.is_exhausted:
        untried = [
            code for code in moves(start.code, kernel, goal) if code.tobytes() not in costs.found
        ]
        if not untried:
            return
        better = None
        for code in untried[:TRIED_EACH]:
            if costs.is_exhausted:
                return
            since += 1
            found = costs.add(code)
            if found.cost < start.cost:
                better = found
                break
        if better is None:
            continue
        start, since = better, 0


def moves(code: Code, kernel: KernelTables, goal: Goal) -> list[Code]:
    """Placements a small move away, the best by the closed form first."""
    codes = np.zeros((_MOST_MOVES, len(code)), np.int32)
    costs = np.empty(_MOST_MOVES)
    count = _list_moves(kernel, goal, code, codes, costs)
    order = np.argsort(costs[:count], kind="stable")
    distinct = {codes[index].tobytes(): codes[index] for index in order}
    return list(distinct.values())


@checked
def _list_moves(k: Any, goal: Any, code: Any, codes: Any, costs: Floats) -> int:
    """Writes the moves of a code and what they cost by the closed form; returns how many."""
    stages = np.empty((k.num_layers + 1, 3), np.int64)
    trial = np.empty_like(stages)
    used = np.empty(k.num_classes, np.int64)
    count = read_stages(code, stages)
    limit = limited_cost(stages, count, k, used, goal, math.inf) * PROMISING
    found, spent = 0, 0
    for row in range(count - 1):
        for shift in _SHIFTS:
            copy_stages(stages, count, trial)
            trial[row, 0] += shift
            start = trial[row - 1, 0] if row > 0 else 0
            if start < trial[row, 0] < trial[row + 1, 0] and found < len(costs):
                cost = limited_cost(trial, count, k, used, goal, limit)
                if cost <= limit:
                    write_code(trial, count, codes[found])
                    costs[found] = cost
                    found += 1
    num_small = num_changes(k, count)
    for index in range(num_small + count - 1):
        if spent >= MOST_EVALUATIONS or found == len(costs):
            break
        copy_stages(stages, count, trial)
        if index < num_small:
            changed = change_stages(k, trial, count, index, used)
        else:
            changed = _unite(k, trial, count, index - num_small)
        if changed == 0:
            continue
        cost = limited_cost(trial, changed, k, used, goal, 2.0 * limit)
        spent += 1
        if cost > 2.0 * limit:
            continue
        cost, more = climb(k, goal, trial, changed, used, cost, MOST_EVALUATIONS - spent)
        spent += more
        if cost <= limit:
            write_code(trial, changed, codes[found])
            costs[found] = cost
            found += 1
    return found


@uncounted_helper
def _unite(k: Any, stages: Any, count: int, row: int) -> int:
    """Joins a stage with the next one of its class, on the devices of both; 0 for other classes."""
    together = stages[row, 2] + stages[row + 1, 2]
    if stages[row, 1] != stages[row + 1, 1] or together > min(k.num_micro_batches, MAX_REPLICAS):
        return 0
    stages[row + 1, 2] = together
    for other in range(row, count - 1):
        copy_stage(stages, other + 1, stages, other)
    return count - 1
