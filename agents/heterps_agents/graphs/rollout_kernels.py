"""Placements of one graph by a policy, many side by side, in one compiled call.

Most of the time goes into the products of the scorer. All placements take their decisions on the
same node at the same time, so that each product has a row for every device of every placement.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.compiled import helper, kernel
from heterps_envs.environments.base.state import LARGEST_RATIO, RUNNING
from heterps_envs.environments.graph.kernels import advance_graphs, observe_graphs
from heterps_envs.environments.graph.state import (
    GRAPH_CANDIDATE_FEATURES,
    GRAPH_NODE_FEATURES,
    GRAPH_STATE_FEATURES,
)

Floats = NDArray[np.float32]


class ScorerWeights(NamedTuple):
    """The layers that score devices: matrices are (in, out), contiguous float32."""

    candidate_in: Floats
    state_in: Floats
    candidate_hidden: Floats
    candidate_hidden_bias: Floats
    score_candidate: Floats
    score_context: Floats
    score_out: Floats


class GraphScorer(NamedTuple):
    """What scores the devices for the nodes of one graph.

    Attributes:
        weights: Of the policy.
        first: (V, hidden) what each node adds to the first layer.
        last: (V, hidden) what it adds to the scoring layer.
        scales: Of the graph's features.
    """

    weights: ScorerWeights
    first: Floats
    last: Floats
    scales: SizeScales


class SizeScales(NamedTuple):
    """Factors of features, see `size_scales`.

    Attributes:
        candidates: (GRAPH_CANDIDATE_FEATURES,) float32.
        state: (GRAPH_STATE_FEATURES,) float32.
        nodes: (GRAPH_NODE_FEATURES,) float32.
    """

    candidates: Floats
    state: Floats
    nodes: Floats


# Features of one node, as shares of the whole step, that shrink as graphs grow; see
# `heterps_envs.environments.graph.env` for their numbers.
_LOCAL_CANDIDATE = (1, 4, 6, 9, 10, 12, 15, 19)
_LOCAL_STATE, _LOCAL_NODE = (13,), (0, 1, 4, 6)
# A size itself means nothing to a policy on sizes that it never saw.
_IGNORED_STATE = (7,)
_USUAL_NODES = 44


def size_scales(num_nodes: int) -> SizeScales:
    """What makes the features of a graph of any size look like those of a usual one.

    A transfer that costs 2 % of the step of 44 nodes costs 0.4 % of that of 220, and matters as
    much.
    """
    scales = SizeScales(
        np.ones(GRAPH_CANDIDATE_FEATURES, np.float32),
        np.ones(GRAPH_STATE_FEATURES, np.float32),
        np.ones(GRAPH_NODE_FEATURES, np.float32),
    )
    for values, local in zip(scales, (_LOCAL_CANDIDATE, _LOCAL_STATE, _LOCAL_NODE), strict=True):
        values[list(local)] = num_nodes / _USUAL_NODES
    scales.state[list(_IGNORED_STATE)] = 0.0
    return scales


class Record(NamedTuple):
    """What training needs of V decisions in each of B placements; V is 0 where nothing is kept.

    Attributes:
        candidates: (V, B, D, GRAPH_CANDIDATE_FEATURES) float32, scaled.
        state: (V, B, GRAPH_STATE_FEATURES) float32, scaled.
        allowed: (V, B, D).
        action: (V, B); -1 where the placement had ended.
        log_probability: (V, B) float32 of the action.
    """

    candidates: Floats
    state: Floats
    allowed: NDArray[np.bool_]
    action: NDArray[np.int64]
    log_probability: Floats


def empty_record(nodes: int, count: int, devices: int) -> Record:
    """Room for `nodes` decisions of `count` placements."""
    return Record(
        candidates=np.zeros((nodes, count, devices, GRAPH_CANDIDATE_FEATURES), np.float32),
        state=np.zeros((nodes, count, GRAPH_STATE_FEATURES), np.float32),
        allowed=np.zeros((nodes, count, devices), np.bool_),
        action=np.full((nodes, count), -1),
        log_probability=np.zeros((nodes, count), np.float32),
    )


class Draws(NamedTuple):
    """How B placements take their devices.

    Attributes:
        temperature: (B,) 0: the most probable device; 1: drawn as the policy says.
        given: (G, V) devices of the first G placements, whatever the policy says; -1: as it says.
    """

    temperature: NDArray[np.float64]
    given: NDArray[np.int16]


class _Scratch(NamedTuple):
    """Room for one decision of B placements with N = B * D candidates."""

    row: NDArray[np.int64]  # (N,) the placement of each candidate
    device: NDArray[np.int64]  # (N,)
    features: Floats
    hidden: Floats
    second: Floats
    shared: Floats
    context: Floats
    logits: Floats


@kernel
def roll_out(
    p: Any,
    guides: Any,
    rows: Any,
    view: Any,
    scorer: Any,
    draws: Any,
    rng: Any,
    record: Any,
) -> None:
    """Places all nodes of one problem, B times.

    Args:
        p: `GraphProblems`.
        guides: `GraphGuides`.
        rows: `GraphRows` of B episodes that begin, all on the same problem; written to.
        view: `GraphView`, written to.
        scorer: `GraphScorer` of the problem.
        draws: `Draws`.
        rng: Of the draws.
        record: `Record`, written to where it has room.
    """
    weights, first, last, scales = scorer
    count, devices = len(rows.problem), view.allowed.shape[1]
    which, actions = np.arange(count), np.zeros(count, np.int64)
    hidden = weights.candidate_hidden.shape[0]
    most = count * devices
    scratch = _Scratch(
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty((most, view.candidates.shape[2]), np.float32),
        np.empty((most, hidden), np.float32),
        np.empty((most, hidden), np.float32),
        np.empty((count, hidden), np.float32),
        np.empty((count, weights.score_context.shape[0]), np.float32),
        np.empty(most, np.float32),
    )
    for node in range(p.num_nodes[rows.problem[0]]):
        observe_graphs(p, guides, rows, view, which)
        _scale(view, scales)
        candidates = _gather(rows, view, scratch)
        if candidates == 0:
            break
        _score(view.state, weights, first[node], last[node], candidates, scratch)
        if len(record.action) > 0:
            record.candidates[node] = view.candidates
            record.state[node] = view.state
            record.allowed[node] = view.allowed
        _choose(candidates, draws, rng, scratch, actions, record, node)
        advance_graphs(p, guides, rows, view, actions)


@helper
def _scale(view: Any, scales: Any) -> None:
    limit = np.float32(LARGEST_RATIO)
    for row in range(len(view.state)):
        for index in range(len(scales.state)):
            value = view.state[row, index] * scales.state[index]
            view.state[row, index] = min(limit, max(-limit, value))
        for device in range(view.allowed.shape[1]):
            if view.allowed[row, device]:
                for index in range(len(scales.candidates)):
                    value = view.candidates[row, device, index] * scales.candidates[index]
                    view.candidates[row, device, index] = min(limit, max(-limit, value))


@helper
def _gather(rows: Any, view: Any, scratch: Any) -> int:
    """Lists the allowed devices of running placements; returns how many there are."""
    count = 0
    for row in range(len(rows.problem)):
        if rows.status[row] != RUNNING:
            continue
        for device in range(view.allowed.shape[1]):
            if view.allowed[row, device]:
                scratch.row[count], scratch.device[count] = row, device
                scratch.features[count] = view.candidates[row, device]
                count += 1
    return count


@helper
def _score(state: Any, weights: Any, first: Any, last: Any, count: int, s: Any) -> None:
    """Logits of the gathered candidates; also the context of every placement."""
    zero, hidden = np.float32(0.0), len(first)
    layer, second = s.hidden[:count], s.second[:count]
    np.dot(state, weights.state_in, s.shared)
    np.dot(s.features[:count], weights.candidate_in, layer)
    for index in range(count):
        shared = s.shared[s.row[index]]
        for unit in range(hidden):
            layer[index, unit] = max(zero, layer[index, unit] + shared[unit] + first[unit])
    np.dot(layer, weights.candidate_hidden, second)
    s.context[:] = zero
    begin = 0
    while begin < count:
        row, end = s.row[begin], begin
        context = s.context[row]
        while end < count and s.row[end] == row:
            for unit in range(hidden):
                value = max(zero, second[end, unit] + weights.candidate_hidden_bias[unit])
                second[end, unit] = value
                context[unit] += value
                context[hidden + unit] = max(context[hidden + unit], value)
            end += 1
        share = np.float32(1.0) / np.float32(end - begin)
        for unit in range(hidden):
            context[unit] *= share
        context[2 * hidden :] = state[row]
        begin = end
    np.dot(s.context, weights.score_context, s.shared)
    np.dot(second, weights.score_candidate, layer)
    for index in range(count):
        shared = s.shared[s.row[index]]
        for unit in range(hidden):
            layer[index, unit] = max(zero, layer[index, unit] + shared[unit] + last[unit])
    np.dot(layer, weights.score_out, s.logits[:count])


@helper
def _choose(count: int, draws: Any, rng: Any, s: Any, actions: Any, record: Any, node: int) -> None:
    """Draws a device for every placement (the largest logit plus Gumbel noise is a sample)."""
    temperature, given = draws
    keeps, begin = len(record.action) > 0, 0
    while begin < count:
        row, end, best, highest = s.row[begin], begin, begin, -np.inf
        while end < count and s.row[end] == row:
            key = float(s.logits[end])
            if row < len(given) and given[row, node] >= 0:
                key = 1.0 if s.device[end] == given[row, node] else 0.0
            elif temperature[row] > 0:
                key -= temperature[row] * math.log(-math.log(rng.random() + 1e-300))
            if key > highest:
                best, highest = end, key
            end += 1
        actions[row] = s.device[best]
        if keeps:
            top, total = s.logits[begin:end].max(), 0.0
            for index in range(begin, end):
                total += math.exp(s.logits[index] - top)
            record.action[node, row] = actions[row]
            record.log_probability[node, row] = s.logits[best] - top - math.log(total)
        begin = end


@kernel
def mean_messages(nodes: Any, listener: Any, speaker: Any) -> Any:
    """What each node hears: the mean over its speakers; zeros where there is none.

    Args:
        nodes: (V, W) float32 what every node says.
        listener: (E,) the node that hears, for each edge.
        speaker: (E,) the node that speaks.

    Returns:
        (V, W) float32.
    """
    heard, edges = np.zeros_like(nodes), np.zeros(len(nodes), np.float32)
    for edge in range(len(listener)):
        edges[listener[edge]] += np.float32(1.0)
        for unit in range(nodes.shape[1]):
            heard[listener[edge], unit] += nodes[speaker[edge], unit]
    for node in range(len(nodes)):
        for unit in range(nodes.shape[1]):
            heard[node, unit] /= max(edges[node], np.float32(1.0))
    return heard
