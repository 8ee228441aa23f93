"""What an update of graph training learns from: placements of problems, judged in groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps_agents.graphs.annealing import anneal_packed_graph
from heterps_agents.graphs.decode import GraphDecoder, Rollouts, scaled_node_features
from heterps_agents.graphs.network import GraphBatch, GraphScorer
from heterps_agents.graphs.rollout_kernels import Record, empty_record
from heterps_agents.interface.planner import Budget
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.environments.graph.state import empty_graph_rows
from heterps_envs.graphs.problem import GraphTables

# A placement that ran out of memory counts as worse than the worst complete ones, but not so much
# worse that the differences between those drown in it.
STUCK_REWARD, MISSING_WEIGHT = -0.5, 0.2
# Annealing of the group's best placement is cool: it keeps what needs no change.
POLISH_TEMPERATURE = 0.01
_LEAST_SPREAD = 1e-3


class Decisions(NamedTuple):
    """M decisions.

    Attributes:
        candidates: (M, D, GRAPH_CANDIDATE_FEATURES).
        state: (M, GRAPH_STATE_FEATURES).
        allowed: (M, D).
        node: (M,) rows of `GraphBatch`.
        action: (M,).
        log_probability: (M,) of the action, when it was taken.
        advantage: (M,) how much better than its group the placement became, in units of the
            spread; 0 for given placements.
    """

    candidates: Tensor
    state: Tensor
    allowed: Tensor
    node: Tensor
    action: Tensor
    log_probability: Tensor
    advantage: Tensor

    def part(self, rows: Tensor) -> Decisions:
        """Some of them."""
        return Decisions(*(field[rows] for field in self))


class Collected(NamedTuple):
    """An update's decisions, the graphs they were taken on, and what the log shows.

    Attributes:
        own: Decisions of the policy.
        polished: Those that lead to the polished placements.
        reward: Mean over all placements.
        best_reward: Mean over the best placement of each problem.
        polished_reward: The same after polishing.
        stuck: Share of placements that ran out of memory.
    """

    own: Decisions
    polished: Decisions
    graphs: GraphBatch
    reward: float
    best_reward: float
    polished_reward: float
    stuck: float


def rewards(rollouts: Rollouts, earliest_s: float) -> NDArray[np.float64]:
    """(B,) log(earliest-finish step time / step time); below -0.5 for what ran out of memory."""
    complete = np.isfinite(rollouts.step_time_s)
    seconds = np.where(complete, rollouts.step_time_s, earliest_s)
    stuck = STUCK_REWARD - MISSING_WEIGHT * (1.0 - rollouts.placed)
    return np.where(complete, np.log(earliest_s / seconds), stuck)


def collect(
    scorer: GraphScorer,
    tables: Sequence[GraphTables],
    rollouts: int,
    polish_evaluations: int,
    rng: np.random.Generator,
) -> Collected:
    """Places every problem some times, and compares the placements of each with each other.

    The baseline is the mean of the group (Kool et al., 2019; Kwon et al., POMO, 2020): problems
    differ much more than the placements of one problem do. The best placement of each group is also
    polished by a short annealing, and what comes out is an example to imitate (expert iteration,
    Anthony et al., 2017).

    Args:
        scorer: The network.
        tables: Problems.
        rollouts: Placements of each.
        polish_evaluations: Of each problem's best placement; 0 for no examples.
        rng: Of the draws.
    """
    pool = GraphPool.from_tables(tables)
    policy = scorer.exported({})
    problems = pool.problems
    rows = empty_graph_rows(rollouts, problems)
    own, polished, reward, polished_reward = [], [], [], []
    for row in range(problems.num_problems):
        decoder = GraphDecoder(policy, pool, row)
        record = _record(decoder, rollouts)
        found = decoder.roll_out(np.ones(rollouts), rng, record, rows)
        own.append(record)
        reward.append(rewards(found, float(pool.reference_s[row])))
        example = _polished(decoder, found, polish_evaluations, rng)
        polished.append(example[0])
        polished_reward.append(example[1])
    outcome = np.array(reward)
    centred = outcome - outcome.mean(axis=1, keepdims=True)
    centred /= max(float(centred.std()), _LEAST_SPREAD)
    return Collected(
        own=_joined(own, centred),
        polished=_joined(polished, np.zeros((len(polished), 1))),
        graphs=graph_batch(pool),
        reward=float(outcome.mean()),
        best_reward=float(outcome.max(axis=1).mean()),
        polished_reward=float(np.mean(polished_reward)),
        stuck=float((outcome <= STUCK_REWARD).mean()),
    )


def _record(decoder: GraphDecoder, count: int) -> Record:
    return empty_record(decoder.num_nodes, count, decoder.pool.problems.max_devices)


def _polished(
    decoder: GraphDecoder, found: Rollouts, evaluations: int, rng: np.random.Generator
) -> tuple[Record, float]:
    """The decisions that lead to a better placement than the best one found, and its reward."""
    pool, best = decoder.pool, int(found.step_time_s.argmin())
    if evaluations == 0 or not np.isfinite(found.step_time_s[best]):
        return _record(decoder, 1), 0.0
    devices, _ = anneal_packed_graph(
        pool.problems, decoder.problem, found.devices[best], Budget(evaluations),
        int(rng.integers(2**31)), POLISH_TEMPERATURE,
    )  # fmt: skip
    record = _record(decoder, 1)
    again = decoder.roll_out(np.zeros(1), rng, record, given=devices[None])
    return record, float(rewards(again, float(pool.reference_s[decoder.problem]))[0])


def graph_batch(pool: GraphPool) -> GraphBatch:
    """The nodes and edges of all problems of a pool, one problem after another."""
    counts = pool.problems.num_nodes
    first = np.cumsum(counts) - counts
    edges = [pool.producer_edges(row) for row in range(len(counts))]
    features = [scaled_node_features(pool, row) for row in range(len(counts))]
    ends = [
        np.concatenate([start + edge[end] for start, edge in zip(first, edges, strict=True)])
        for end in (0, 1)
    ]
    return GraphBatch(torch.from_numpy(np.concatenate(features)), *map(torch.from_numpy, ends))


def _joined(records: Sequence[Record], advantages: NDArray[np.float64]) -> Decisions:
    """All decisions that were taken, one row each.

    Args:
        records: Of N problems, (V, B) decisions each.
        advantages: (N, B).
    """
    taken = np.concatenate([record.action.ravel() for record in records]) >= 0

    def flat(arrays: Sequence[NDArray[Any]]) -> Tensor:
        rows = np.concatenate([array.reshape(-1, *array.shape[2:]) for array in arrays])
        return torch.from_numpy(rows[taken])

    nodes, wide, first = [], [], 0
    for record, advantage in zip(records, advantages.astype(np.float32), strict=True):
        count = len(record.action)
        nodes.append(np.broadcast_to(first + np.arange(count)[:, None], record.action.shape))
        wide.append(np.broadcast_to(advantage, record.action.shape))
        first += count
    return Decisions(
        candidates=flat([record.candidates for record in records]),
        state=flat([record.state for record in records]),
        allowed=flat([record.allowed for record in records]),
        node=flat(nodes),
        action=flat([record.action for record in records]),
        log_probability=flat([record.log_probability for record in records]),
        advantage=flat(wide),
    )
