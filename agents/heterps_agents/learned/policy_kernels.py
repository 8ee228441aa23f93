"""The forward pass of a policy in one compiled call: what a beam spends most of its time in."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.compiled import KERNEL, compiled

Floats = NDArray[np.float32]


class ScorerWeights(NamedTuple):
    """The weights that scoring needs, transposed to (in, out); see `training.network`."""

    candidate_in: Floats
    candidate_in_bias: Floats
    state_in: Floats
    candidate_hidden: Floats
    candidate_hidden_bias: Floats
    score_candidate: Floats
    score_candidate_bias: Floats
    score_context: Floats
    score_out: Floats  # (hidden,)


@compiled(**KERNEL, fastmath=True)
def score(w: Any, candidates: Any, state: Any, row: Any, out: Any) -> None:
    """Log-probabilities of candidates among those of their row.

    Args:
        w: `ScorerWeights`.
        candidates: (N, features).
        state: (B, features).
        row: (N,) ascending; every row has at least one.
        out: (N,) float32, written.
    """
    count, hidden = len(row), w.candidate_hidden.shape[0]
    from_state = np.dot(state, w.state_in)
    context = np.empty((len(state), 2 * hidden + state.shape[1]), np.float32)
    layer = np.dot(candidates, w.candidate_in)
    for index in range(count):
        for unit in range(hidden):
            layer[index, unit] = max(
                np.float32(0.0),
                layer[index, unit] + w.candidate_in_bias[unit] + from_state[row[index], unit],
            )
    layer = np.dot(layer, w.candidate_hidden)
    first = 0
    for begin_row in range(len(state)):
        line = context[begin_row]
        line[: 2 * hidden] = 0.0
        line[2 * hidden :] = state[begin_row]
        last = first
        while last < count and row[last] == begin_row:
            for unit in range(hidden):
                value = max(np.float32(0.0), layer[last, unit] + w.candidate_hidden_bias[unit])
                layer[last, unit] = value
                line[unit] += value
                line[hidden + unit] = max(line[hidden + unit], value)
            last += 1
        share = np.float32(1.0) / np.float32(last - first)
        for unit in range(hidden):
            line[unit] *= share
        first = last
    from_context = np.dot(context, w.score_context)
    layer = np.dot(layer, w.score_candidate)
    for index in range(count):
        total = np.float32(0.0)
        for unit in range(hidden):
            value = (
                layer[index, unit] + w.score_candidate_bias[unit] + from_context[row[index], unit]
            )
            total += max(np.float32(0.0), value) * w.score_out[unit]
        out[index] = total
    first = 0
    while first < count:
        last, largest = first, out[first]
        while last < count and row[last] == row[first]:
            largest = max(largest, out[last])
            last += 1
        total = np.float32(0.0)
        for index in range(first, last):
            total += np.exp(out[index] - largest)
        shift = largest + np.log(total)
        for index in range(first, last):
            out[index] -= shift
        first = last
