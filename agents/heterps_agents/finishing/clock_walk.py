"""A walk by the clock: small changes of a placement, judged in tens of microseconds each.

The clock (`heterps_envs.schedule.placement_clock`) is within a few percent of the simulator and
takes a hundredth of its time, so a walk sees a hundred times as many placements. Its best ones are
for the simulator to choose from. Changes that are worse are taken too, less and less so (threshold
accepting: Dueck and Scheuer, 1990).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from heterps_agents.interface.question import Question
from heterps_agents.search.refine import climb
from heterps_agents.search.stage_changes import (
    OTHER_OPTION,
    SPLIT,
    SWAP,
    change_stages,
    copy_stage,
    copy_stages,
    exchange,
    hand_layers,
    numbered_change,
    relocate,
    reverse,
)
from heterps_envs.arrays import Code, Floats, Integers
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.objective import MISSES_FLOOR, limited_cost, read_stages, write_code
from heterps_envs.closed_form.placement import decode
from heterps_envs.compiled import ALLOCATING, uncounted_helper
from heterps_envs.problem import Problem
from heterps_envs.schedule.placement_clock import clocked_step_time_s
from heterps_envs.schedule.shared_sums import SharedParameters, shared_parameters

# A change may be so much worse in the beginning, of what the placement costs.
THRESHOLD = 0.005
# Changes that are drawn at a time, between looks whether the budget is over.
DRAWN = 256
# So many changes in turn without a better best: on from the best.
MOST_TRIED = 1500
# Of the placements that were the best for a while, the last ones are handed over.
MOST_BEST = 16
# Passes of all changes that one round judges: a second or two, as most changes are left out before.
MOST_PASSES = 100_000_000
# Evaluations of the closed form for the cuts of a change.
_MOST_CLIMBED: Any = np.int64(100)
_SHIFTS = np.array([1, -1, 2, -2, 3, -3])
# Kinds of changes, each as likely as any other; replicas are handed over one at a time or several.
_MOVES_CUT, _DOUBLES, _RUN, _STEPS, _JOINS, _HANDS_ONE, _HANDS = 0, 1, 2, 3, 4, 5, 6
_OPTION, _SWAPS, _SPLITS, _RELOCATES, _REVERSES, _EXCHANGES, _LAYERS = 7, 8, 9, 10, 11, 12, 13
_NUM_KINDS = 14
_MOST_HANDED, _MOST_LAYERS = 8, 2
# Of so many changes one is of two kinds at a time, and of so many one has its cuts moved.
_EACH_DOUBLE, _EACH_CLIMBED = 2, 8
# Random numbers that a change takes: those of both kinds, and which of these it is.
_NUMBERS = 10
# Rows of a walk's placements, and of its costs and counts: where it is, its best, a trial.
_CURRENT, _BEST, _TRIAL = 0, 1, 2
_SINCE_BEST, _SINCE_NEW = 3, 4
# Placements that a walk remembers, with what they cost: a power of two.
_REMEMBERED = 1 << 16
# After so many changes without a placement that it did not see before, a walk takes changes that
# are worse by so much more, until it sees one.
MOST_SEEN, RAISED = 500, 0.02


class _Walk(NamedTuple):
    """Where a walk is.

    Attributes:
        stages: (3, L + 1, 3) of the current placement, the best one, and a trial.
        counts: (5,) their stages; changes since the best, and since a placement that was new.
        costs: (2,) of the first two, by the clock.
        used: (T,) scratch.
        bests: (B, L) codes of the last best placements, in turn.
        best_costs: (B,) what they cost.
        num_bests: (1,) how many there were.
        seen: (N,) hashes of placements that were run, each in the row of its last bits.
        seen_s: (N,) what they cost.
    """

    stages: Integers
    counts: Integers
    costs: Floats
    used: Integers
    bests: Any
    best_costs: Floats
    num_bests: Integers
    seen: Any
    seen_s: Floats


def best_by_clock(
    problem: Problem,
    question: Question,
    codes: list[Code],
    walks: int,
    changes: int,
    threshold: float = THRESHOLD,
) -> list[Code]:
    """Placements on walks from the best of some, best first; the first one where none is better.

    Several walks begin, and while there are three or more a third of them goes on, three times as
    long.

    Args:
        problem: A view of what was asked, with the links that the clock counts with.
        question: The same for searches: walks have its seed and the next ones, and the end of its
            budget ends them.
        codes: Placements that fit.
        walks: How many begin at most.
        changes: How many are judged in each round, of all its walks together; fewer where a step
            has very many passes.
        threshold: A change may be so much worse in the beginning, of what the placement costs.
    """
    shared = shared_parameters(problem.profile, problem.tables.gradient_bytes)
    costs = clocked_costs(problem, question, codes)
    pool = list(zip(costs, codes, strict=True))
    num_stages = max(len(decode(code, question.options)) for code in codes)
    num_passes = 2 * num_stages * question.kernel.num_micro_batches
    changes = min(changes, MOST_PASSES // num_passes)
    number, found = min(walks, len(codes)), list[tuple[float, Code]]()
    while number > 0:
        found = []
        for index, (_, code) in enumerate(sorted(pool, key=lambda entry: entry[0])[:number]):
            own = question._replace(seed=question.seed + index)
            found += _walked(own, code, changes // number, shared, threshold)
        pool, number = found, -(-number // 3) if number > 2 else 0
    return [code for _, code in sorted(found, key=lambda entry: entry[0])]


def _walked(
    question: Question,
    start: Code,
    num_changes_tried: int,
    shared: SharedParameters,
    threshold: float,
) -> list[tuple[float, Code]]:
    """The best placements on a walk, with their costs; the start alone, where none is better."""
    walk, budget = _begin(question, start, shared), question.budget
    rng, done = np.random.default_rng(question.seed), 0
    while done < num_changes_tried and not budget.is_exhausted:
        numbers = rng.integers(0, 1 << 30, (min(DRAWN, num_changes_tried - done), _NUMBERS))
        own = threshold * (1 - max(done / num_changes_tried, budget.time_share))
        _go_on(question.kernel, question.goal, shared, walk, numbers, own)
        done += len(numbers)
    count = int(walk.num_bests[0])
    rows = [number % MOST_BEST for number in range(max(count - MOST_BEST, 0), count)]
    return [(float(walk.best_costs[row]), walk.bests[row].copy()) for row in rows]


def clocked_costs(problem: Problem, question: Question, codes: list[Code]) -> list[float]:
    """Step times of placements by the clock, in the links of a view."""
    shared = shared_parameters(problem.profile, problem.tables.gradient_bytes)
    return [float(_code_cost(code, question.kernel, shared)) for code in codes]


def _begin(question: Question, start: Code, shared: SharedParameters) -> _Walk:
    kernel = question.kernel
    stages = np.zeros((3, kernel.num_layers + 1, 3), np.int64)
    counts, bests = np.zeros(5, np.int64), np.zeros((MOST_BEST, len(start)), np.int32)
    counts[_CURRENT] = counts[_BEST] = read_stages(start, stages[_CURRENT])
    stages[_BEST], bests[0] = stages[_CURRENT], start
    costs = np.full(2, float(_code_cost(start, kernel, shared)))
    used = np.zeros(kernel.num_classes, np.int64)
    best_costs = np.full(MOST_BEST, costs[0])
    num_bests, seen = np.ones(1, np.int64), np.zeros(_REMEMBERED, np.uint64)
    seen_s = np.zeros(_REMEMBERED)
    return _Walk(stages, counts, costs, used, bests, best_costs, num_bests, seen, seen_s)


@njit(**ALLOCATING)
def _code_cost(code: Any, k: Any, shared: Any) -> float:
    stages = np.empty((k.num_layers, 3), np.int64)
    count = read_stages(code, stages)
    return clocked_step_time_s(stages, count, k, shared, math.inf)  # type: ignore[no-any-return]


@njit(**ALLOCATING)
def _go_on(k: Any, goal: Any, shared: Any, walk: Any, numbers: Any, threshold: float) -> None:
    """Tries a change for each row of numbers."""
    stages, counts, costs, used, bests, best_costs, num_bests, seen, seen_s = walk
    for index in range(len(numbers)):
        if counts[_SINCE_BEST] >= MOST_TRIED:
            copy_stages(stages[_BEST], counts[_BEST], stages[_CURRENT])
            counts[_CURRENT], costs[_CURRENT] = counts[_BEST], costs[_BEST]
            counts[_SINCE_BEST] = 0
        counts[_SINCE_BEST] += 1
        counts[_SINCE_NEW] += 1
        raised = RAISED * (counts[_SINCE_NEW] // MOST_SEEN)
        most = (1.0 + threshold + raised) * costs[_CURRENT]
        trial = stages[_TRIAL]
        copy_stages(stages[_CURRENT], counts[_CURRENT], trial)
        changed = _change(k, trial, counts[_CURRENT], numbers[index, :4], used)
        if changed > 0 and numbers[index, 4] % _EACH_DOUBLE == 0:
            changed = _change(k, trial, changed, numbers[index, 5:9], used)
        if changed == 0:
            continue
        cost = limited_cost(trial, changed, k, used, goal, math.inf)
        if numbers[index, 9] % _EACH_CLIMBED == 0 and cost < MISSES_FLOOR:
            cost, _ = climb(k, goal, trial, changed, used, cost, _MOST_CLIMBED)
        if cost >= MISSES_FLOOR:
            continue
        hashed = _hash(trial, changed)
        place = hashed % _REMEMBERED
        if seen[place] == hashed:
            step_time_s = seen_s[place]
        else:
            step_time_s = clocked_step_time_s(trial, changed, k, shared, most)
            if step_time_s <= most:
                seen[place], seen_s[place], counts[_SINCE_NEW] = hashed, step_time_s, 0
        if step_time_s >= most or step_time_s > goal.floor_s:
            continue
        copy_stages(trial, changed, stages[_CURRENT])
        counts[_CURRENT], costs[_CURRENT] = changed, step_time_s
        if step_time_s < costs[_BEST] * (1.0 - 1e-9):
            copy_stages(trial, changed, stages[_BEST])
            counts[_BEST], costs[_BEST], counts[_SINCE_BEST] = changed, step_time_s, 0
            best_costs[num_bests[0] % MOST_BEST] = step_time_s
            write_code(trial, changed, bests[num_bests[0] % MOST_BEST])
            num_bests[0] += 1


@uncounted_helper
def _hash(stages: Any, count: int) -> Any:
    """64 bits that two placements have in common by chance alone (FNV-1a, mixed)."""
    hashed = np.uint64(14695981039346656037)
    for row in range(count):
        for column in range(3):
            hashed = (hashed ^ np.uint64(stages[row, column])) * np.uint64(1099511628211)
            hashed ^= hashed >> np.uint64(29)
    return hashed


@uncounted_helper
def _change(k: Any, stages: Any, count: int, numbers: Any, used: Any) -> int:
    """Changes stages in one way; returns how many there are then, 0 where it makes no sense."""
    what, row, third, fourth = numbers[0] % _NUM_KINDS, numbers[1] % count, numbers[2], numbers[3]
    most = min(k.num_micro_batches, MAX_REPLICAS)
    old = stages[row, 2]
    if what == _MOVES_CUT:
        if row == count - 1:
            return 0
        start = stages[row - 1, 0] if row > 0 else 0
        stages[row, 0] += _SHIFTS[third % len(_SHIFTS)]
        return count if start < stages[row, 0] < stages[row + 1, 0] else 0
    if what == _DOUBLES:
        stages[row, 2] = old * 2 if third % 2 == 0 else old // 2
    elif what == _STEPS:
        stages[row, 2] = old + third % 9 - 4
    elif what == _JOINS:
        return _join(stages, count, row, third, most)
    elif what == _RUN:  # neighbours that have as many get as many more or fewer
        new, until = old + third % 9 - 4, row
        while until < count and until - row <= fourth % 16 and stages[until, 2] == old:
            stages[until, 2] = new
            until += 1
    elif what in (_HANDS_ONE, _HANDS):
        handed = 1 if what == _HANDS_ONE else 1 + fourth % _MOST_HANDED
        return _hand_over(stages, count, row, third % count, handed, most)
    elif what >= _RELOCATES:
        return _in_other_order(stages, count, row, third % count, what, 1 + fourth % _MOST_LAYERS)
    else:
        known = OTHER_OPTION if what == _OPTION else SWAP if what == _SWAPS else SPLIT
        return change_stages(k, stages, count, numbered_change(k, count, known, row, third), used)
    return count if 1 <= stages[row, 2] <= most and stages[row, 2] != old else 0


@uncounted_helper
def _in_other_order(stages: Any, count: int, row: int, other: int, what: int, layers: int) -> int:
    """Moves a stage with its layers, or several, or layers from one stage to another."""
    first, last = min(row, other), max(row, other)
    if first == last:
        return 0
    if what == _RELOCATES:
        relocate(stages, row, other)
    elif what == _REVERSES:
        reverse(stages, first, last)
    elif what == _EXCHANGES:
        exchange(stages, first, last)
    else:
        return count if hand_layers(stages, row, other, layers) else 0
    return count


@uncounted_helper
def _hand_over(stages: Any, count: int, row: int, other: int, handed: int, most: int) -> int:
    """Gives replicas to another stage of the same option."""
    if other == row or stages[other, 1] != stages[row, 1] or stages[row, 2] <= handed:
        return 0
    stages[row, 2] -= handed
    stages[other, 2] += handed
    return count if stages[other, 2] <= most else 0


@uncounted_helper
def _join(stages: Any, count: int, row: int, number: int, most: int) -> int:
    """Joins a stage with the next one, on the devices of either or, of one option, of both."""
    if row == count - 1:
        return 0
    option, replicas = stages[row + 1, 1], stages[row + 1, 2]
    if number % 3 == 0:
        option, replicas = stages[row, 1], stages[row, 2]
    elif number % 3 == 1 and option == stages[row, 1]:
        replicas += stages[row, 2]
    if replicas > most:
        return 0
    stages[row + 1, 1], stages[row + 1, 2] = option, replicas
    for other in range(row, count - 1):
        copy_stage(stages, other + 1, stages, other)
    return count - 1
