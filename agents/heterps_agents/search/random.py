"""The planner `random`: random placements that keep devices and memory; the best of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heterps_agents.interface.chunks import chunks
from heterps_agents.interface.question import Question
from heterps_agents.interface.search_planner import search_planner
from heterps_envs.arrays import Code
from heterps_envs.closed_form.formula import MAX_REPLICAS, replicas_left
from heterps_envs.closed_form.objective import (
    MISSES_FLOOR,
    reverse_stages,
    search_cost,
    write_code,
)
from heterps_envs.closed_form.stage_formula import in_flight, stage_bytes
from heterps_envs.compiled import checked, uncounted_helper

DEFAULT_EVALUATIONS = 10_000


@search_planner("random")
def random_code(question: Question) -> Code | None:
    """Code of the best of as many random placements as the budget allows; starts are ignored."""
    _, kernel, goal, budget, seed, *_ = question
    best_code, best_cost = None, math.inf
    for chunk in chunks(budget, DEFAULT_EVALUATIONS, seed):
        code = np.zeros(kernel.num_layers, np.int32)
        cost = _sample(kernel, goal, chunk.evaluations, chunk.rng, code)
        if cost < min(best_cost, MISSES_FLOOR):
            best_code, best_cost = code, cost
            question.found(code, cost)
    return best_code


@checked
def _sample(k: Any, goal: Any, evaluations: int, rng: Any, best_code: Any) -> float:
    """Writes the code of the best of some random placements; returns its cost, inf for none."""
    stages = np.empty((k.num_layers, 3), np.int64)
    used = np.empty(k.num_classes, np.int64)
    best_cost = np.inf
    for _ in range(evaluations):
        count = draw(k, rng, stages, used)
        if count == 0:
            continue
        cost = search_cost(stages, count, k, used, goal)
        if cost < best_cost:
            best_cost = cost
            write_code(stages, count, best_code)
    return best_cost


@uncounted_helper
def draw(k: Any, rng: Any, stages: Any, used: Any) -> int:
    """One random placement, back to front: class, replicas and number of layers of each stage.

    Args:
        k: `KernelTables`.
        rng: `numpy.random.Generator`.
        stages: (L, 3) int64 to write to, see `heterps_envs.closed_form.objective.read_stages`.
        used: (T,) int64 scratch.

    Returns:
        How many stages there are; 0 where the draw ran out of devices or memory.
    """
    used[:] = 0
    mean_length = k.num_layers / (1 + int(rng.random() * min(k.num_layers, k.device_count.sum())))
    stop, total, count = k.num_layers, 0, 0
    while stop > 0:
        kind = int(rng.random() * k.num_options)
        free = min(replicas_left(k, kind, used), k.num_micro_batches, MAX_REPLICAS)
        if free <= 0:
            if not _has_room(k, used):
                return 0
            continue
        replicas = 1 if rng.random() < 0.5 else 1 + int(rng.random() * free)
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, total)
        wanted = 1 + int(mean_length * 2.0 * rng.random())
        start = stop
        while start > max(0, stop - wanted):
            if stage_bytes(k, start - 1, stop, kind, replicas, held) > k.memory_bytes[kind]:
                break
            start -= 1
        used[k.class_of_option[kind]] += replicas * k.devices_of_option[kind]
        if start == stop:
            continue
        stages[count, 0], stages[count, 1], stages[count, 2] = stop, kind, replicas
        total, stop, count = total + replicas, start, count + 1
    reverse_stages(stages, count)
    return count


@uncounted_helper
def _has_room(k: Any, used: Any) -> bool:
    """Whether the devices left suffice for a stage of any option."""
    for option in range(k.num_options):  # noqa: SIM110 - compiled
        if replicas_left(k, option, used) > 0:
            return True
    return False
