"""The planner `cross-entropy`: the cross-entropy method over cuts, classes and replicas.

Placements are drawn back to front. A stage ends in front of a layer with a probability of that
layer's own, its class and its replicas follow probabilities of its last layer; only free devices
are drawn, and no more layers than fit the memory. Every generation, the probabilities move towards
the frequencies among the best tenth (Rubinstein, 1999), which lives on (an elite).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.interface.chunks import chunks
from heterps_agents.interface.question import Question
from heterps_agents.interface.search_planner import search_planner
from heterps_agents.search.genetic import draw_member
from heterps_agents.search.starts import simple_start
from heterps_envs.arrays import Code
from heterps_envs.closed_form.formula import MAX_REPLICAS, replicas_left
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import (
    MISSES_FLOOR,
    code_cost,
    code_of,
    read_stages,
    reverse_stages,
    search_cost,
)
from heterps_envs.closed_form.stage_formula import in_flight, stage_bytes
from heterps_envs.compiled import checked, uncounted, uncounted_helper

DEFAULT_EVALUATIONS = 100_000
# A generation: this share of the evaluations, within limits; and where only seconds are limited.
EVALUATIONS_PER_MEMBER, SMALLEST, LARGEST, USUAL = 16, 20, 400, 200
ELITE_SHARE = 0.1
# How far the probabilities move towards the elite, and how near to 0 and 1 a cut may come.
SMOOTHING, LEAST_CHANCE = 0.6, 0.02


class _Model(NamedTuple):
    """Probabilities, K = most replicas of a stage.

    Attributes:
        cut: (L,) that a stage begins with the layer; that of layer 0 is not used.
        kind: (L, O) options of the stage that ends with, or covers, the layer.
        replicas: (L, K) its replicas - 1.
    """

    cut: NDArray[np.float64]
    kind: NDArray[np.float64]
    replicas: NDArray[np.float64]


class _Generation(NamedTuple):
    """Members, the elite first once there is one.

    Attributes:
        stages: (P, L, 3) int64.
        counts: (P,) their numbers of stages.
        costs: (P,); inf where there is no member yet.
        filled: (2,) members of this generation, and generations before it.
    """

    stages: NDArray[np.int64]
    counts: NDArray[np.int64]
    costs: NDArray[np.float64]
    filled: NDArray[np.int64]


@search_planner("cross-entropy", simple_start)
def cross_entropy_code(question: Question) -> Code | None:
    """Code of the best placement drawn."""
    _, kernel, goal, budget, seed, start, *_ = question
    size, model = generation_size(budget.evaluations_left), _uniform(kernel)
    generation = _Generation(
        np.zeros((size, kernel.num_layers, 3), np.int64),
        np.zeros(size, np.int64),
        np.full(size, np.inf),
        np.zeros(2, np.int64),
    )
    if start is not None:
        generation.counts[0] = read_stages(start, generation.stages[0])
        generation.costs[0] = code_cost(start, kernel, goal)
        generation.filled[0] = 1
    least = math.inf
    for chunk in chunks(budget, DEFAULT_EVALUATIONS, seed):
        _search(kernel, goal, chunk.evaluations, chunk.rng, model, generation)
        best = int(generation.costs.argmin())
        if generation.costs[best] < least:
            least = float(generation.costs[best])
            question.found(code_of(generation.stages[best], generation.counts[best]), least)
    best = int(generation.costs.argmin())
    if generation.costs[best] >= MISSES_FLOOR:
        return None
    return code_of(generation.stages[best], generation.counts[best])


def generation_size(evaluations: int | None) -> int:
    """Small generations where there is not much to spend."""
    wanted = USUAL if evaluations is None else evaluations // EVALUATIONS_PER_MEMBER
    return min(LARGEST, max(SMALLEST, wanted))


def _uniform(kernel: KernelTables) -> _Model:
    layers, options = kernel.num_layers, kernel.num_options
    most = int(min(kernel.device_count.max(), kernel.num_micro_batches, MAX_REPLICAS))
    return _Model(
        np.full(layers, min(0.5, kernel.device_count.sum() / (2 * layers))),
        np.full((layers, options), 1 / options),
        np.full((layers, most), 1 / most),
    )


@checked
def _search(k: Any, goal: Any, evaluations: int, rng: Any, model: Any, generation: Any) -> None:
    """Draws one member for each evaluation; fits the model whenever a generation is full."""
    used = np.empty(k.num_classes, np.int64)
    size, filled = len(generation.costs), generation.filled
    for _ in range(evaluations):
        if filled[0] == size:
            filled[0] = _fit(model, generation)
            filled[1] += 1
        row = filled[0]
        stages = generation.stages[row]
        if filled[1] == 0:
            count = draw_member(k, rng, stages, used)
        else:
            count = _draw(k, rng, model, stages, used)
        generation.counts[row] = count
        generation.costs[row] = search_cost(stages, count, k, used, goal)
        filled[0] += 1


@uncounted
def _draw(k: Any, rng: Any, model: Any, stages: Any, used: Any) -> int:
    """One placement from the model.

    Args:
        k: `KernelTables`.
        rng: `numpy.random.Generator`.
        model: `_Model`.
        stages: (L, 3) int64 to write to, see `heterps_envs.closed_form.objective.read_stages`.
        used: (T,) int64 scratch.

    Returns:
        How many stages there are. Where the devices run out, the front stage takes the rest of the
        layers, whether they fit or not.
    """
    used[:] = 0
    stop, total, count = k.num_layers, 0, 0
    while stop > 0:
        kind = _draw_option(k, rng, model.kind[stop - 1], used)
        if kind < 0:
            break
        free = min(replicas_left(k, kind, used), k.num_micro_batches, MAX_REPLICAS)
        replicas = 1 + _draw_index(rng, model.replicas[stop - 1, :free])
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, total)
        start = stop
        while start > 0:
            memory = stage_bytes(k, start - 1, stop, kind, replicas, held)
            if start < stop and (memory > k.memory_bytes[kind] or rng.random() < model.cut[start]):
                break
            start -= 1
        stages[count, 0], stages[count, 1], stages[count, 2] = stop, kind, replicas
        used[k.class_of_option[kind]] += replicas * k.devices_of_option[kind]
        total, stop, count = total + replicas, start, count + 1
    reverse_stages(stages, count)
    return count


@uncounted_helper
def _draw_option(k: Any, rng: Any, shares: Any, used: Any) -> int:
    """An option with free devices; -1 where there is none."""
    total = 0.0
    for kind in range(k.num_options):
        if replicas_left(k, kind, used) > 0:
            total += shares[kind]
    left, last = rng.random() * total, -1
    for kind in range(k.num_options):
        if replicas_left(k, kind, used) > 0:
            last = kind
            left -= shares[kind]
            if left < 0.0:
                break
    return last


@uncounted_helper
def _draw_index(rng: Any, shares: Any) -> int:
    """An index with a probability in proportion to its share."""
    left = rng.random() * shares.sum()
    for index in range(len(shares)):
        left -= shares[index]
        if left < 0.0:
            return index
    return len(shares) - 1


@checked
def _fit(model: Any, generation: Any) -> int:
    """Moves the model towards the elite, and the elite to the front; returns its size."""
    order = np.argsort(generation.costs)
    elite = max(2, int(ELITE_SHARE * len(order)))
    stages, counts = generation.stages[order[:elite]], generation.counts[order[:elite]]
    costs = generation.costs[order[:elite]]
    generation.stages[:elite], generation.counts[:elite] = stages, counts
    generation.costs[:elite] = costs
    model.cut[:] *= 1.0 - SMOOTHING
    model.kind[:] *= 1.0 - SMOOTHING
    model.replicas[:] *= 1.0 - SMOOTHING
    weight = SMOOTHING / elite
    for member in range(elite):
        start = 0
        for row in range(counts[member]):
            stop, kind, replicas = stages[member, row]
            model.cut[start] += weight
            for layer in range(start, stop):
                model.kind[layer, kind] += weight
                model.replicas[layer, min(replicas, model.replicas.shape[1]) - 1] += weight
            start = stop
    # Nothing may become impossible.
    classes, most = model.kind.shape[1], model.replicas.shape[1]
    for layer in range(len(model.cut)):
        model.cut[layer] = min(1.0 - LEAST_CHANCE, max(LEAST_CHANCE, model.cut[layer]))
        model.kind[layer] = np.maximum(model.kind[layer], LEAST_CHANCE / classes)
        model.replicas[layer] = np.maximum(model.replicas[layer], LEAST_CHANCE / most)
    return elite
