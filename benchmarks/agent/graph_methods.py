"""The methods for graphs, one line each: earliest finish, searches, and the policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.agent.comparison import Entry
from heterps_agents.graphs.annealing import anneal_graph
from heterps_agents.graphs.decode import GraphDecoder
from heterps_agents.graphs.genetic import genetic_graph
from heterps_agents.graphs.planner import place_graph
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.interface.planner import Budget
from heterps_configs.errors import InfeasibleError
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.graphs.earliest_finish import earliest_finish_placements
from heterps_envs.graphs.problem import GraphTables, pack_graphs
from heterps_envs.graphs.simulator import graph_cost, graph_step_times, simulate_graph

Devices = NDArray[np.int16]
Run = Callable[[GraphTables, Budget, int], Devices | None]

EARLIEST_FINISH = "earliest finish"
# Entries whose CPU seconds the searches get as well.
SAMPLES_16, SAMPLES_64 = "policy, 16 samples", "policy, 64 samples"
NORMAL, HIGH = "policy + annealing, normal", "policy + annealing, high"
EVALUATIONS, QUICK_EVALUATIONS = (256, 1000, 10_000, 30_000), (1000,)
# Random placements that are simulated between two looks at the budget.
CHUNK = 128


def cost(tables: GraphTables, devices: Devices) -> float:
    """Step time of a placement; inf where it does not fit."""
    return simulate_graph(tables, devices).step_time_s


def entries(
    policy: GraphPolicy, quick: bool, with_high: bool = False
) -> list[Entry[GraphTables, Devices]]:
    """The lines of a table, top to bottom; the effort high takes up to seconds for each problem."""
    efforts = {NORMAL: "normal", HIGH: "high"} if with_high and not quick else {NORMAL: "normal"}
    others = [NORMAL] if quick else [SAMPLES_16, SAMPLES_64, *efforts]
    evaluations = QUICK_EVALUATIONS if quick else EVALUATIONS
    return [
        Entry(EARLIEST_FINISH, partial(_earliest_finish, False)),
        Entry(f"{EARLIEST_FINISH}, by rank", partial(_earliest_finish, True)),
        *(Entry(name, run) for name, run in policy_methods(policy).items()),
        *(Entry(name, partial(_with_effort, effort, policy)) for name, effort in efforts.items()),
        *(Entry("annealing", _annealing, evaluations=count) for count in evaluations),
        *(Entry("annealing", _annealing, cpu_of=other) for other in others),
        *(Entry("genetic", _genetic, evaluations=count) for count in evaluations),
        *(Entry("genetic", _genetic, cpu_of=other) for other in others),
        *(Entry("random", _random, evaluations=count) for count in QUICK_EVALUATIONS),
        Entry("random", _random, cpu_of=NORMAL),
    ]


def policy_methods(policy: GraphPolicy) -> dict[str, Run]:
    """The decodings of a policy, by name, from the quickest to the slowest."""
    return {
        "policy, greedy": partial(_sampled, policy, 1),
        SAMPLES_16: partial(_sampled, policy, 16),
        SAMPLES_64: partial(_sampled, policy, 64),
    }


def _sampled(
    policy: GraphPolicy, count: int, tables: GraphTables, budget: Budget, seed: int
) -> Devices | None:
    """The best of the most probable placement and samples beside it."""
    decoder = GraphDecoder(policy, GraphPool.from_tables([tables]))
    found = decoder.samples(count, np.random.default_rng(seed))
    budget.spend(count)
    best = int(found.step_time_s.argmin())
    return found.devices[best] if math.isfinite(found.step_time_s[best]) else None


def _with_effort(
    effort: str, policy: GraphPolicy, tables: GraphTables, budget: Budget, seed: int
) -> Devices | None:
    try:
        return place_graph(tables, effort, budget=budget, seed=seed, policy=policy).devices
    except InfeasibleError:
        return None


def _earliest_finish(
    by_rank: bool, tables: GraphTables, budget: Budget, seed: int
) -> Devices | None:
    step_time_s, devices = earliest_finish_placements(pack_graphs([tables]), by_rank)
    budget.spend()
    return devices[0] if math.isfinite(step_time_s[0]) else None


def _annealing(tables: GraphTables, budget: Budget, seed: int) -> Devices | None:
    return anneal_graph(tables, budget, seed)


def _genetic(tables: GraphTables, budget: Budget, seed: int) -> Devices | None:
    return genetic_graph(tables, budget, seed)


def _random(tables: GraphTables, budget: Budget, seed: int) -> Devices | None:
    """The best of uniform placements, each node on a device that can run it."""
    problems, rng = pack_graphs([tables]), np.random.default_rng(seed)
    allowed = np.isfinite(tables.forward_s)
    best: Devices | None = None
    best_s, step_time_s, overflow = math.inf, np.zeros(CHUNK), np.zeros(CHUNK)
    while not budget.is_exhausted:
        count = min(CHUNK, CHUNK if budget.evaluations_left is None else budget.evaluations_left)
        keys = rng.random((count, *allowed.shape)) * allowed
        devices = keys.argmax(axis=2).astype(np.int16)
        rows = np.zeros(count, np.int64)
        graph_step_times(problems, rows, devices, step_time_s[:count], overflow[:count])
        budget.spend(count)
        costs = graph_cost(step_time_s[:count], overflow[:count])
        costs[overflow[:count] > 0] = math.inf
        if costs.min() < best_s:
            best_s, best = float(costs.min()), devices[costs.argmin()]
    return best
