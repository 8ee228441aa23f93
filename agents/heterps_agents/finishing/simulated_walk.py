"""A walk on the simulator: random small changes of a placement, judged by nothing else.

`improve` tries what the closed form likes. Where that is far from the simulator, as behind slow
links, what it likes least may be the way to the best placement. So changes are taken at random, and
some that are worse, less and less so (threshold accepting: Dueck and Scheuer, 1990).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heterps_agents.finishing.simulated_costs import Simulated, SimulatedCosts
from heterps_agents.interface.question import Question
from heterps_agents.search.refine import climb
from heterps_agents.search.stage_changes import change_stages, copy_stages, num_changes
from heterps_envs.arrays import Code
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.objective import MISSES_FLOOR, limited_cost, read_stages, write_code
from heterps_envs.compiled import checked

# A change may be so much worse in the beginning, of what the placement costs.
THRESHOLD = 0.05
# With fewer simulations than these no change may be worse.
FEW_STEPS = 500
# So many changes are drawn at a time; so many in turn that are all too bad: on from the best.
DRAWN, MOST_TRIED = 64, 60
# So many draws in turn without a placement that was not simulated before: there are no more.
MOST_STALE = 20
# Evaluations of the closed form for the cuts of a change.
_MOST_CLIMBED: Any = np.int64(200)
_SHIFTS = np.array([1, -1, 2, -2, 3, -3])
# Of four changes one moves a cut, one doubles or halves replicas; the others are of stages.
_MOVES_CUT, _DOUBLES = 0, 1


def walk(costs: SimulatedCosts, question: Question, start: Simulated, steps: float) -> None:
    """Simulates what lies on a walk from a placement, until nothing more may be simulated.

    Args:
        costs: Holds the placement, and gets the others; says when it is over.
        question: What was asked; its seed is the walk's.
        start: Where it begins.
        steps: How many simulations there may be, about. Of few none is spent on what is worse.
    """
    threshold = THRESHOLD if steps >= FEW_STEPS else 0.0
    rng, budget = np.random.default_rng(question.seed), question.budget
    best = current = start
    tried = stale = 0
    while not costs.is_exhausted and stale < MOST_STALE:
        drawn, num_found = neighbours(current.code, question, rng), len(costs.found)
        most = 1 + threshold * (1 - budget.time_share)
        if not drawn:
            return
        for code in drawn:
            if costs.is_exhausted:
                return
            found, tried = costs.add(code), tried + 1
            if found.cost < most * current.cost and found.code.tobytes() != current.code.tobytes():
                current, tried = found, 0
                if current.cost < best.cost and costs.fits(current):
                    best = current
                break
        stale = 0 if len(costs.found) > num_found else stale + 1
        if tried >= MOST_TRIED:
            current, tried = best, 0


def neighbours(code: Code, question: Question, rng: np.random.Generator) -> list[Code]:
    """Distinct placements a small change away, in a random order; those that fit by the rule."""
    codes = np.zeros((DRAWN, len(code)), np.int32)
    numbers = rng.integers(0, 1 << 30, (DRAWN, 4))
    count = _draw(question.kernel, question.goal, code, numbers, codes)
    distinct = {codes[index].tobytes(): codes[index] for index in range(count)}
    distinct.pop(code.tobytes(), None)
    return list(distinct.values())


@checked
def _draw(k: Any, goal: Any, code: Any, numbers: Any, codes: Any) -> int:
    """Writes changes of a code that fit by the closed form; returns how many."""
    stages = np.empty((k.num_layers + 1, 3), np.int64)
    trial = np.empty_like(stages)
    used = np.empty(k.num_classes, np.int64)
    count, found = read_stages(code, stages), 0
    for index in range(len(numbers)):
        copy_stages(stages, count, trial)
        what, which, climbs = numbers[index, 0] % 4, numbers[index, 1], numbers[index, 2] % 2
        changed = count
        if what == _MOVES_CUT and count > 1:
            row = which % (count - 1)
            trial[row, 0] += _SHIFTS[numbers[index, 3] % len(_SHIFTS)]
            start = trial[row - 1, 0] if row > 0 else 0
            if not start < trial[row, 0] < trial[row + 1, 0]:
                continue
            climbs = 0
        elif what == _DOUBLES:
            row = which % count
            twice = trial[row, 2] * 2 if numbers[index, 3] % 2 == 0 else trial[row, 2] // 2
            if not 1 <= twice <= min(k.num_micro_batches, MAX_REPLICAS):
                continue
            trial[row, 2] = twice
        else:
            changed = change_stages(k, trial, count, which % num_changes(k, count), used)
            if changed == 0:
                continue
        cost = limited_cost(trial, changed, k, used, goal, math.inf)
        if climbs and cost < math.inf:
            cost, _ = climb(k, goal, trial, changed, used, cost, _MOST_CLIMBED)
        if cost >= MISSES_FLOOR:
            continue
        write_code(trial, changed, codes[found])
        found += 1
    return found
