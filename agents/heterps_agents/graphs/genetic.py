"""A steady-state genetic algorithm over graph placements: one of the searches of the field.

Parents are the winners of tournaments of two. A child takes the nodes between two random places of
the topological order from one parent and the others from the other parent, so that neighbours stay
together; then it is changed by a move of `heterps_agents.graphs.moves`. It takes the place of
the worst of the population, if it is better and no twin lives there (Whitley's GENITOR, 1989, with
uniform instead of ranked selection). The population begins with the simple placements' best and
random ones.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.graphs.annealing import able_devices, repair
from heterps_agents.graphs.annealing_kernels import placement_cost
from heterps_agents.graphs.earliest_finish import simple_placement
from heterps_agents.graphs.moves import move_nodes
from heterps_agents.interface.chunks import chunks
from heterps_agents.interface.planner import Budget
from heterps_agents.search.genetic import MUTATION, population_size
from heterps_envs.arrays import Floats
from heterps_envs.compiled import checked, checked_helper, kernel
from heterps_envs.graphs.problem import GraphTables, Placement, pack_graphs
from heterps_envs.graphs.simulator import empty_row, overflow_of

DEFAULT_EVALUATIONS = 30_000


def genetic_graph(
    tables: GraphTables, budget: Budget, seed: int, *, start: Placement | None = None
) -> Placement | None:
    """The best placement that ever lived; never a worse one than the start.

    Args:
        tables: The problem.
        budget: What may be spent. Without any limit, `DEFAULT_EVALUATIONS`.
        seed: Equal seeds give equal placements, unless a limit in seconds ends the search.
        start: (V,) the first member; it need not fit. By default the best simple placement
            (`heterps_agents.graphs.earliest_finish`).

    Returns:
        (V,) int16; None if nothing seen fits.

    Raises:
        HeterpsError: A node can run on no device.
    """
    problems = pack_graphs([tables])
    if start is None:
        start = simple_placement(problems, 0, budget)
    nodes = int(problems.num_nodes[0])
    able, num_able = able_devices(problems, 0)
    size = population_size(budget.evaluations_left)
    population = np.zeros((size, problems.max_nodes), np.int16)
    population[0, :nodes] = start
    repair(population[0, :nodes], able, num_able)
    state, costs, fits = empty_row(problems), np.full(size, np.inf), np.zeros(size, np.bool_)
    costs[0], fits[0] = placement_cost(problems, 0, population[0], state)
    members = _Population(population, costs, fits)
    for chunk in chunks(budget, DEFAULT_EVALUATIONS, seed):
        _evolve(problems, 0, chunk.evaluations, chunk.rng, able, num_able, members, state)
    # The worst of the population makes room, and one that fits is never it before any that does
    # not.
    best = int(np.where(fits, costs, np.inf).argmin())
    is_usable = fits[best] and overflow_of(problems, 0, population[best], state.free_s) == 0
    return population[best, :nodes].copy() if is_usable else None


class _Population(NamedTuple):
    """Members.

    Attributes:
        placements: (P, V) int16.
        costs: (P,) inf for a member that is not there yet.
        fits: (P,) whether memory holds them.
    """

    placements: Placement
    costs: Floats
    fits: NDArray[np.bool_]


@kernel
def _evolve(
    p: Any,
    z: int,
    evaluations: int,
    rng: Any,
    able: Any,
    num_able: Any,
    members: Any,
    state: Any,
) -> None:
    """One member for each evaluation: drawn at random while there is room, then a child.

    Args:
        p: `GraphProblems`.
        z: Row of the problem.
        evaluations: How many.
        rng: `numpy.random.Generator`.
        able: (V, D) see `heterps_agents.graphs.annealing.able_devices`.
        num_able: (V,) the same.
        members: `_Population`, written to.
        state: Scratch of the simulator.
    """
    population, costs, fits = members
    nodes, child = p.num_nodes[z], population[0].copy()
    moved = np.zeros(len(child), np.int64)
    for _ in range(evaluations):
        worst = _worst(costs, fits)
        is_empty = costs[worst] == math.inf
        if is_empty:
            for node in range(nodes):
                child[node] = able[node, int(rng.random() * num_able[node])]
        else:
            mother, father = _parent(rng, costs, fits), _parent(rng, costs, fits)
            child[:nodes] = population[mother, :nodes]
            take_range(rng, nodes, population[father], child)
            if rng.random() < MUTATION:
                move_nodes(p, z, rng, able, num_able, child, moved)
        cost, is_fitting = placement_cost(p, z, child, state)
        is_better = is_fitting > fits[worst] or (is_fitting == fits[worst] and cost < costs[worst])
        if is_empty or (is_better and not (costs == cost).any()):
            population[worst, :nodes] = child[:nodes]
            costs[worst], fits[worst] = cost, is_fitting


@checked_helper
def _worst(costs: Any, fits: Any) -> int:
    """A member that is not there yet, else the dearest that does not fit, else the dearest."""
    worst = 0
    for member in range(1, len(costs)):
        if costs[member] == math.inf:
            return member
        if fits[member] != fits[worst]:
            worst = member if fits[worst] else worst
        elif costs[member] > costs[worst]:
            worst = member
    return worst


@checked_helper
def _parent(rng: Any, costs: Any, fits: Any) -> int:
    """The better of two random members."""
    first, second = int(rng.random() * len(costs)), int(rng.random() * len(costs))
    if fits[first] != fits[second]:
        return first if fits[first] else second
    return first if costs[first] <= costs[second] else second


@checked
def take_range(rng: Any, nodes: int, father: Any, child: Any) -> None:
    """Two-point crossover in the order of the nodes, in place."""
    first, second = int(rng.random() * nodes), int(rng.random() * nodes)
    for node in range(min(first, second), max(first, second) + 1):
        child[node] = father[node]
