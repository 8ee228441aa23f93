"""The planner `genetic`: a steady-state genetic algorithm over stages.

Parents are the winners of tournaments of two. A child takes the stages in front of a random cut
from one parent and those behind it from the other, so that cuts keep their order; then it is
changed by a move of `heterps_agents.search.annealing`. It takes the place of the worst of the
population, if it is better and no twin lives there (Whitley's GENITOR, 1989, with uniform instead
of ranked selection).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heterps_agents.interface.chunks import chunks
from heterps_agents.interface.question import Question
from heterps_agents.interface.search_planner import search_planner
from heterps_agents.search.annealing import SECOND_MOVE, move
from heterps_agents.search.random import draw
from heterps_agents.search.stage_changes import copy_stage
from heterps_agents.search.starts import simple_start
from heterps_envs.arrays import Code
from heterps_envs.closed_form.objective import (
    MISSES_FLOOR,
    code_cost,
    code_of,
    limited_cost,
    read_stages,
)
from heterps_envs.compiled import ZERO, checked, uncounted, uncounted_helper

DEFAULT_EVALUATIONS = 100_000
# Population: this share of the evaluations, within limits.
EVALUATIONS_PER_MEMBER, SMALLEST, LARGEST = 16, 8, 128
MUTATION = 0.9
# Draws that run out of devices or memory have no cost, so they are not evaluations.
DRAWS = 16


@search_planner("genetic", simple_start)
def genetic_code(question: Question) -> Code | None:
    """Code of the best placement that ever lived."""
    _, kernel, goal, budget, seed, *_ = question
    size = population_size(budget.evaluations_left)
    population = np.zeros((size, kernel.num_layers, 3), np.int64)
    counts, costs = np.zeros(size, np.int64), np.full(size, np.inf)
    for member, code in enumerate(_first_members(question)[: size // 2]):
        counts[member] = read_stages(code, population[member])
        costs[member] = code_cost(code, kernel, goal)
    least = math.inf
    for chunk in chunks(budget, DEFAULT_EVALUATIONS, seed):
        _evolve(kernel, goal, chunk.evaluations, chunk.rng, population, counts, costs)
        best = int(costs.argmin())
        if costs[best] < least:
            least = float(costs[best])
            question.found(code_of(population[best], counts[best]), least)
    best = int(costs.argmin())
    return code_of(population[best], counts[best]) if costs[best] < MISSES_FLOOR else None


def _first_members(question: Question) -> list[Code]:
    """Placements that are there already, each once: where the search starts, and known ones."""
    codes = [] if question.start is None else [question.start]
    return list({code.tobytes(): code for code in (*codes, *question.known)}.values())


def population_size(evaluations: int | None) -> int:
    """Few members where there is not much to spend: each is to have descendants."""
    wanted = LARGEST if evaluations is None else evaluations // EVALUATIONS_PER_MEMBER
    return min(LARGEST, max(SMALLEST, wanted))


@checked
def _evolve(
    k: Any, goal: Any, evaluations: int, rng: Any, population: Any, counts: Any, costs: Any
) -> None:
    """One member for each evaluation: drawn at random while there is room, then a child.

    Args:
        k: `KernelTables`.
        goal: `Goal`.
        evaluations: How many.
        rng: `numpy.random.Generator`.
        population: (P, L, 3) int64 stages, written to.
        counts: (P,) their numbers of stages; 0 for a member that is not there yet.
        costs: (P,) their costs.
    """
    child = np.empty_like(population[0])
    used = np.empty(k.num_classes, np.int64)
    for _ in range(evaluations):
        worst = np.argmax(costs)
        if counts[worst] == 0:
            count = draw_member(k, rng, child, used)
        else:
            mother, father = _parent(rng, costs), _parent(rng, costs)
            count = cross(rng, population[mother], counts[mother], population[father], child)
            if rng.random() < MUTATION:
                count = move(k, rng, child, count, used)
                if rng.random() < SECOND_MOVE:
                    count = move(k, rng, child, count, used)
        cost = limited_cost(child, count, k, used, goal, costs[worst])
        if counts[worst] == 0 or (cost < costs[worst] and not (costs == cost).any()):
            population[worst, :count] = child[:count]
            counts[worst], costs[worst] = count, cost


@checked
def draw_member(k: Any, rng: Any, stages: Any, used: Any) -> int:
    """A random placement, which keeps devices and memory where some draws find one.

    Otherwise all layers in one stage, which does not fit: that too has a cost, and descendants.
    """
    for _ in range(DRAWS):
        count = draw(k, rng, stages, used)
        if count > 0:
            return count
    stages[0, 0], stages[0, 1], stages[0, 2] = k.num_layers, int(rng.random() * k.num_options), 1
    return 1


@uncounted_helper
def _parent(rng: Any, costs: Any) -> int:
    """The better of two random members."""
    first, second = int(rng.random() * len(costs)), int(rng.random() * len(costs))
    return first if costs[first] <= costs[second] else second


@uncounted
def cross(rng: Any, mother: Any, mother_count: int, father: Any, child: Any) -> int:
    """One-point crossover in the order of the layers.

    The stage that the cut falls into belongs to both; where the two agree about its devices it
    stays whole.

    Args:
        rng: `numpy.random.Generator`.
        mother: (L, 3) int64; its stages in front of the cut are taken.
        mother_count: Rows in use.
        father: (L, 3) int64; its stages behind the cut are taken.
        child: (L, 3) int64 to write to.

    Returns:
        The child's number of stages.
    """
    layers = mother[mother_count - 1, 0]
    if layers == 1:
        copy_stage(mother, ZERO, child, ZERO)
        return 1
    cut = 1 + int(rng.random() * (layers - 1))
    if rng.random() < 0.5 and mother_count > 1:
        cut = mother[int(rng.random() * (mother_count - 1)), 0]
    count: int = ZERO
    while count == 0 or child[count - 1, 0] < cut:
        copy_stage(mother, count, child, count)
        count += 1
    child[count - 1, 0] = cut
    row = ZERO
    while father[row, 0] <= cut:
        row += 1
    begins = father[row - 1, 0] if row > 0 else 0
    is_same = father[row, 1] == child[count - 1, 1] and father[row, 2] == child[count - 1, 2]
    if is_same and begins < cut:
        count -= 1
    while True:
        copy_stage(father, row, child, count)
        count += 1
        if father[row, 0] == layers:
            return count
        row += 1
