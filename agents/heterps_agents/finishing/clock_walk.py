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

from heterps_agents.finishing.random_changes import changed_stages
from heterps_agents.interface.question import Question
from heterps_agents.search.refine import climb
from heterps_agents.search.stage_changes import copy_stages
from heterps_envs.arrays import Code, Floats, Integers
from heterps_envs.closed_form.objective import MISSES_FLOOR, limited_cost, read_stages, write_code
from heterps_envs.closed_form.placement import decode
from heterps_envs.compiled import allocating, uncounted_helper
from heterps_envs.problem import Problem
from heterps_envs.schedule.placement_clock import (
    clocked_step_time_s,
    clocked_within_s,
    step_time_bound_s,
)
from heterps_envs.schedule.shared_sums import SharedParameters, shared_parameters

# A change may be so much worse in the beginning, of what the placement costs.
THRESHOLD = 0.005
# Changes that are drawn at a time, between looks whether the budget is over.
DRAWN = 256
# So many changes in turn without a better best: on from the best.
MOST_TRIED = 1500
# Of the placements that were the best for a while, the last ones are handed over.
MOST_BEST = 16
# Passes of all changes that a walk judges: up to ten seconds, as most changes are left out before.
MOST_PASSES = 900_000_000
# Evaluations of the closed form for the cuts of a change.
_MOST_CLIMBED: Any = np.int64(100)
# Of so many changes one is of two kinds at a time, and of so many one has its cuts moved.
_EACH_DOUBLE, _EACH_CLIMBED = 2, 8
# Random numbers that a change takes: those of both kinds, and which of these it is.
_NUMBERS = 10
# Rows of a walk's placements, and of its costs and counts: where it is, its best, the last one that
# was run, a trial.
_CURRENT, _BEST, _LAST_RUN, _TRIAL = 0, 1, 2, 3
_SINCE_BEST, _SINCE_NEW, _SINCE_RUN = 4, 5, 6
# Costs, further on: of the last one that was run over its bound.
_RATIO = 3
# So many changes in turn are taken without a run, while what is expected is so far above the best.
MOST_UNRUN, NEAR = 8, 1.01
# Placements that a walk remembers, with what they cost: a power of two.
_REMEMBERED = 1 << 16
# After so many changes without a placement that it did not see before, a walk takes changes that
# are worse by so much more, until it sees one.
MOST_SEEN, RAISED = 500, 0.02


class _Walk(NamedTuple):
    """Where a walk is.

    Attributes:
        stages: (4, L + 1, 3) of the current placement, the best one, the last run, and a trial.
        counts: (7,) their stages; changes since the best, since a placement that was new, and those
            taken since the last run.
        costs: (4,) of the first three; by the clock, but for the first one; and what the last run
            took over its bound.
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
    changes: int,
    threshold: float = THRESHOLD,
) -> list[Code]:
    """Placements on a walk from the best of some, best first; that one where none is better.

    Args:
        problem: A view of what was asked, with the links that the clock counts with.
        question: The same for searches: the walk has its seed, and the end of its budget ends it.
        codes: Placements that fit.
        changes: How many are judged; fewer where a step has very many passes.
        threshold: A change may be so much worse in the beginning, of what the placement costs.
    """
    shared = shared_parameters(problem.profile, problem.tables.gradient_bytes)
    start = best_clocked(problem, question, codes)[0]
    num_stages = max(len(decode(code, question.options)) for code in codes)
    num_passes = 2 * num_stages * question.kernel.num_micro_batches
    changes = min(changes, MOST_PASSES // num_passes)
    found = _walked(question, start, changes, shared, threshold)
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


def best_clocked(problem: Problem, question: Question, codes: list[Code]) -> list[Code]:
    """Placements, those first that take the least by the clock, in the links of a view."""
    costs = clocked_costs(problem, question, codes)
    return [codes[index] for index in sorted(range(len(codes)), key=costs.__getitem__)]


def clocked_costs(problem: Problem, question: Question, codes: list[Code]) -> list[float]:
    """Step times of placements by the clock, in the links of a view."""
    shared = shared_parameters(problem.profile, problem.tables.gradient_bytes)
    return [float(_code_cost(code, question.kernel, shared)) for code in codes]


def _begin(question: Question, start: Code, shared: SharedParameters) -> _Walk:
    kernel = question.kernel
    stages = np.zeros((4, kernel.num_layers + 1, 3), np.int64)
    counts, bests = np.zeros(7, np.int64), np.zeros((MOST_BEST, len(start)), np.int32)
    counts[:_TRIAL] = read_stages(start, stages[_CURRENT])
    stages[_BEST], stages[_LAST_RUN], bests[0] = stages[_CURRENT], stages[_CURRENT], start
    costs = np.full(4, float(_code_cost(start, kernel, shared)))
    costs[_RATIO] = 1.0
    used = np.zeros(kernel.num_classes, np.int64)
    best_costs = np.full(MOST_BEST, costs[0])
    num_bests, seen = np.ones(1, np.int64), np.zeros(_REMEMBERED, np.uint64)
    seen_s = np.zeros(_REMEMBERED)
    return _Walk(stages, counts, costs, used, bests, best_costs, num_bests, seen, seen_s)


@allocating
def _code_cost(code: Any, k: Any, shared: Any) -> float:
    stages = np.empty((k.num_layers, 3), np.int64)
    count = read_stages(code, stages)
    return clocked_step_time_s(stages, count, k, shared)


@allocating
def _go_on(k: Any, goal: Any, shared: Any, walk: Any, numbers: Any, threshold: float) -> None:
    """Tries a change for each row of numbers.

    What a placement takes is expected to be as far above its bound as that of the last one that was
    run. A change that is expected to be too bad is left out; of those that are not, the ones that
    may be the best are run, and the last one of several.
    """
    counts, costs = walk.counts, walk.costs
    for index in range(len(numbers)):
        if counts[_SINCE_BEST] >= MOST_TRIED:
            _go_back(walk, _BEST)
            counts[_SINCE_BEST] = 0
        counts[_SINCE_BEST] += 1
        counts[_SINCE_NEW] += 1
        raised = RAISED * (counts[_SINCE_NEW] // MOST_SEEN)
        most = min((1.0 + threshold + raised) * costs[_CURRENT], goal.floor_s)
        count = _change(k, goal, walk, numbers[index])
        if count == 0:
            continue
        bound_s = step_time_bound_s(walk.stages[_TRIAL], count, k, shared)
        expected_s = max(1.0, costs[_RATIO]) * bound_s
        if expected_s >= most:
            continue
        if counts[_SINCE_RUN] < MOST_UNRUN and expected_s > NEAR * costs[_BEST]:
            _put(walk, _TRIAL, count, expected_s, _CURRENT)
            counts[_SINCE_RUN] += 1
            continue
        step_time_s = _run(k, shared, walk, count, most)
        if step_time_s >= most:
            _go_back(walk, _LAST_RUN)
            continue
        _put(walk, _TRIAL, count, step_time_s, _LAST_RUN)
        costs[_RATIO] = step_time_s / bound_s if bound_s > 0.0 else 1.0
        if step_time_s < costs[_BEST] * (1.0 - 1e-9):
            _put(walk, _TRIAL, count, step_time_s, _BEST)
            _remember_best(walk)
        _go_back(walk, _LAST_RUN)


@uncounted_helper
def _change(k: Any, goal: Any, walk: Any, numbers: Any) -> int:
    """Makes a trial of the current placement; returns how many stages it has, 0: it is of no use.

    It is none either where the closed form says that it misses the floor or does not fit.
    """
    trial, used = walk.stages[_TRIAL], walk.used
    copy_stages(walk.stages[_CURRENT], walk.counts[_CURRENT], trial)
    count = changed_stages(k, trial, walk.counts[_CURRENT], numbers[:4], used)
    if count > 0 and numbers[4] % _EACH_DOUBLE == 0:
        count = changed_stages(k, trial, count, numbers[5:9], used)
    if count == 0:
        return 0
    cost = limited_cost(trial, count, k, used, goal, math.inf)
    if numbers[9] % _EACH_CLIMBED == 0 and cost < MISSES_FLOOR:
        cost, _ = climb(k, goal, trial, count, used, cost, _MOST_CLIMBED)
    return count if cost < MISSES_FLOOR else 0


@allocating
def _run(k: Any, shared: Any, walk: Any, count: int, most: float) -> float:
    """Step time of the trial by the clock, or more than `most`; those taken are remembered."""
    trial = walk.stages[_TRIAL]
    hashed = _hash(trial, count)
    place = hashed % _REMEMBERED
    if walk.seen[place] == hashed:
        return walk.seen_s[place]  # type: ignore[no-any-return]
    step_time_s = clocked_within_s(trial, count, k, shared, most)
    if step_time_s <= most:
        walk.seen[place], walk.seen_s[place] = hashed, step_time_s
        walk.counts[_SINCE_NEW] = 0
    return step_time_s


@uncounted_helper
def _put(walk: Any, row: int, count: int, cost: float, to: int) -> None:
    """Copies a placement to another row."""
    copy_stages(walk.stages[row], count, walk.stages[to])
    walk.counts[to], walk.costs[to] = count, cost


@uncounted_helper
def _go_back(walk: Any, row: int) -> None:
    """Goes on from a placement that was run."""
    for to in (_CURRENT, _LAST_RUN):
        if to != row:
            _put(walk, row, walk.counts[row], walk.costs[row], to)
    walk.counts[_SINCE_RUN] = 0


@uncounted_helper
def _remember_best(walk: Any) -> None:
    """Writes down the new best placement."""
    place = walk.num_bests[0] % MOST_BEST
    walk.best_costs[place] = walk.costs[_BEST]
    write_code(walk.stages[_BEST], walk.counts[_BEST], walk.bests[place])
    walk.num_bests[0] += 1
    walk.counts[_SINCE_BEST] = 0


@uncounted_helper
def _hash(stages: Any, count: int) -> Any:
    """64 bits that two placements have in common by chance alone (FNV-1a, mixed)."""
    hashed = np.uint64(14695981039346656037)
    for row in range(count):
        for column in range(3):
            hashed = (hashed ^ np.uint64(stages[row, column])) * np.uint64(1099511628211)
            hashed ^= hashed >> np.uint64(29)
    return hashed
