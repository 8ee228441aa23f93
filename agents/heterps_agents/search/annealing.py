"""The planner `annealing`: simulated annealing over stages, from the best simple placement.

A step moves a cut, changes the class or the replicas of a stage, splits or merges stages, swaps
their devices, or changes their order. Worse placements are accepted with the probability
exp(-log(cost ratio) / temperature) (Kirkpatrick, Gelatt and Vecchi, 1983); ratios make the
temperature independent of the problem's scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from heterps_agents.interface.chunks import chunks
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.search_planner import search_planner
from heterps_agents.search.stage_changes import copy_stage, copy_stages, relocate, reverse
from heterps_agents.search.starts import simple_start
from heterps_envs.arrays import Code, Floats, Integers
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import (
    ROUNDING,
    Goal,
    code_cost,
    code_of,
    limited_cost,
    read_stages,
)
from heterps_envs.compiled import uncounted, uncounted_helper

DEFAULT_EVALUATIONS = 100_000
START_TEMPERATURE, POLISH_TEMPERATURE = 0.1, 0.03
# Chance of a second move in the same step: a device goes from one stage to another.
SECOND_MOVE = 0.3


class _Walk(NamedTuple):
    """Where annealing is.

    Attributes:
        stages, best: (L, 3) where it is, and the best seen.
        trial, used: (L, 3) and (T,) scratch.
        counts, costs: (2,) of `stages` and `best`.
    """

    stages: Integers
    best: Integers
    trial: Integers
    used: Integers
    counts: Integers
    costs: Floats


def anneal(
    code: Code,
    kernel: KernelTables,
    goal: Goal,
    budget: Budget,
    seed: int,
    *,
    temperature: float = START_TEMPERATURE,
    max_evaluations: int | None = None,
    on_better: Callable[[Code, float], None] | None = None,
) -> Code:
    """The best code seen by simulated annealing; never a worse one than the start.

    Args:
        code: (L,) int32 to start from; it need not fit.
        kernel: Cost tables.
        goal: What to minimise.
        budget: What may be spent.
        seed: Equal seeds give equal codes, unless a limit in seconds ends the search.
        temperature: At the start; it falls linearly to zero. 0.1 accepts 1.1 times the cost with
            a probability of 1 / e.
        max_evaluations: Stop there even if the budget allows more. Without this and any limit in
            the budget, `DEFAULT_EVALUATIONS`.
        on_better: Called with the best and its cost after each chunk that found a better one.
    """
    stages, best, trial = np.empty((3, kernel.num_layers, 3), np.int64)
    used = np.empty(kernel.num_classes, np.int64)
    counts = np.full(2, read_stages(code, stages))
    best[:] = stages
    walk = _Walk(stages, best, trial, used, counts, np.full(2, code_cost(code, kernel, goal)))
    least = float(walk.costs[1])
    for chunk in chunks(budget, DEFAULT_EVALUATIONS, seed, max_evaluations):
        _anneal(
            kernel, goal, chunk.evaluations, chunk.rng,
            temperature * (1 - chunk.start), temperature * (1 - chunk.stop), walk,
        )  # fmt: skip
        if on_better is not None and walk.costs[1] < least:
            least = float(walk.costs[1])
            on_better(code_of(best, counts[1]), least)
    return code_of(best, counts[1])


@search_planner("annealing", simple_start)
def annealed_code(question: Question) -> Code | None:
    """Code of the best placement seen; the search begins with one stage where nothing is known."""
    _, kernel, goal, budget, seed, start, *_ = question
    first = np.zeros(kernel.num_layers, np.int32) if start is None else start
    code = anneal(first, kernel, goal, budget, seed, on_better=question.found)
    return code if math.isfinite(question.cost(code)) else None


def polish(
    code: Code,
    kernel: KernelTables,
    evaluations: int,
    seed: int,
    goal: Goal | None = None,
) -> Code:
    """A short, cool annealing: the best code seen, never a worse one.

    Args:
        code: (L,) int32 to start from.
        kernel: Cost tables.
        evaluations: Placements to look at.
        seed: Equal seeds give equal codes.
        goal: What to minimise; by default the step time.
    """
    budget = Budget(evaluations=evaluations)
    return anneal(code, kernel, goal or Goal(), budget, seed, temperature=POLISH_TEMPERATURE)


@uncounted
def _anneal(
    k: Any,
    goal: Any,
    evaluations: int,
    rng: Any,
    start_temperature: float,
    stop_temperature: float,
    walk: Any,
) -> None:
    """Goes on from `walk.stages`; keeps the best in `walk.best`."""
    stages, best, trial, used, counts, costs = walk
    for step in range(evaluations):
        done = step / evaluations
        temperature = start_temperature * (1.0 - done) + stop_temperature * done + 1e-9
        copy_stages(stages, counts[0], trial)
        count = move(k, rng, trial, counts[0], used)
        if rng.random() < SECOND_MOVE:
            count = move(k, rng, trial, count, used)
        cost = limited_cost(trial, count, k, used, goal, costs[0])
        if cost > costs[0]:
            draw = rng.random()
            # What is accepted at most; where that is close, the rule itself decides.
            limit = costs[0] * math.exp(-math.log(draw) * temperature) * (1.0 + ROUNDING)
            if cost > limit:
                continue
            cost = limited_cost(trial, count, k, used, goal, limit)
            if draw >= math.exp(-math.log(cost / costs[0]) / temperature):
                continue
        copy_stages(trial, count, stages)
        counts[0], costs[0] = count, cost
        if cost < costs[1]:
            copy_stages(trial, count, best)
            counts[1], costs[1] = count, cost


@uncounted
def move(k: Any, rng: Any, stages: Any, count: int, used: Any) -> int:
    """Changes the stages in one random way, in place.

    Args:
        k: `KernelTables`.
        rng: `numpy.random.Generator`.
        stages: (L, 3) int64, see `heterps_envs.closed_form.objective.read_stages`.
        count: Rows in use.
        used: (T,) int64 scratch.

    Returns:
        How many rows are in use then.
    """
    row = int(rng.random() * count)
    start = stages[row - 1, 0] if row > 0 else 0
    choice = rng.random()
    if choice < 0.3:
        _shift_cut(rng, stages, count, row)
    elif choice < 0.45:
        stages[row, 1] = _free_option(k, rng, stages, count, used)
        stages[row, 2] = min(stages[row, 2], _most_replicas(k, stages[row, 1]))
    elif choice < 0.65:
        step = 1 if rng.random() < 0.5 else -1
        stages[row, 2] = min(max(1, stages[row, 2] + step), _most_replicas(k, stages[row, 1]))
    elif choice < 0.77:
        if stages[row, 0] - start > 1:
            return _split(k, rng, stages, count, row, start, used)
    elif choice < 0.89:
        if count > 1:
            return _merge(rng, stages, count, min(row, count - 2))
    else:
        _in_other_order(stages, row, int(rng.random() * count), choice)
    return count


@uncounted_helper
def _in_other_order(stages: Any, row: int, other: int, choice: float) -> None:
    """Swaps the devices of two stages, or moves stages with their layers."""
    if choice < 0.93:
        for column in (1, 2):
            swapped = stages[row, column]
            stages[row, column] = stages[other, column]
            stages[other, column] = swapped
    elif choice < 0.97:
        relocate(stages, row, other)
    else:
        reverse(stages, min(row, other), max(row, other))


@uncounted_helper
def _most_replicas(k: Any, kind: int) -> int:
    """The most that the devices of an option's class suffice for; 1 where they do for none."""
    all_of_class = k.device_count[k.class_of_option[kind]] // k.devices_of_option[kind]
    most: int = max(1, min(all_of_class, k.num_micro_batches, MAX_REPLICAS))
    return most


@uncounted_helper
def _free_option(k: Any, rng: Any, stages: Any, count: int, used: Any) -> int:
    """A random option; one with free devices where the first two draws find one."""
    used[:] = 0
    for row in range(count):
        kind = stages[row, 1]
        used[k.class_of_option[kind]] += stages[row, 2] * k.devices_of_option[kind]
    kind = int(rng.random() * k.num_options)
    device_class = k.class_of_option[kind]
    if used[device_class] + k.devices_of_option[kind] > k.device_count[device_class]:
        kind = int(rng.random() * k.num_options)
    return kind


@uncounted_helper
def _shift_cut(rng: Any, stages: Any, count: int, row: int) -> None:
    """Moves the cut behind a stage by one layer, or by a random share of the stage that shrinks."""
    if row + 1 >= count:
        return
    start = stages[row - 1, 0] if row > 0 else 0
    stop, next_stop = stages[row, 0], stages[row + 1, 0]
    reach = stop - start - 1 if rng.random() < 0.5 else stop + 1 - next_stop
    if reach == 0:
        return
    sign = -1 if reach > 0 else 1
    length = 1 if rng.random() < 0.5 else 1 + int(rng.random() * abs(reach))
    stages[row, 0] = stop + sign * length


@uncounted_helper
def _split(k: Any, rng: Any, stages: Any, count: int, row: int, start: int, used: Any) -> int:
    """Cuts a stage in two; one half keeps class and replicas, the other gets one device."""
    kind = _free_option(k, rng, stages, count, used)
    for other in range(count, row, -1):
        copy_stage(stages, other - 1, stages, other)
    stages[row, 0] = start + 1 + int(rng.random() * (stages[row, 0] - start - 1))
    half = row if rng.random() < 0.5 else row + 1
    stages[half, 1], stages[half, 2] = kind, 1
    return count + 1


@uncounted_helper
def _merge(rng: Any, stages: Any, count: int, row: int) -> int:
    """Joins a stage with the next one, on the devices of either."""
    if rng.random() < 0.5:
        stages[row + 1, 1], stages[row + 1, 2] = stages[row, 1], stages[row, 2]
    for other in range(row, count - 1):
        copy_stage(stages, other + 1, stages, other)
    return count - 1
