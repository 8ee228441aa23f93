"""The least seconds in front of a stage, behind it, and on the way around what is behind it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.near_links import NearLinks
from heterps_envs.step_bounds.sums import prefix


class Ways(NamedTuple):
    """As in `Needs`: row 0 of any way, row 1 of one that comes from, or goes to, another node."""

    in_s: Floats
    out_s: Floats
    around_s: Floats


def ways_of(
    problem: Problem, links: NearLinks, forward_s: Floats, backward_s: Floats, unit: float
) -> Ways:
    """Of the smallest micro-batch.

    A way over another node reaches the stage's node at its own cut, or at one before and then
    passes the stage's own cut besides.

    Args:
        problem: Its messages.
        links: Of its classes.
        forward_s: (L, O) of the smallest micro-batch.
        backward_s: (L, O) of that what is waited for.
        unit: The smallest micro-batch.
    """
    waits = 0.0 if problem.job.schedule == "zero-bubble" else 1.0
    forward = prefix(forward_s.min(axis=1)[:, None])
    backward = prefix(backward_s.min(axis=1)[:, None])
    num_bytes = unit * problem.tables.output_bytes[:, None]
    # (2, L + 1, T) over the cut in front of a layer; no message enters the model, or leaves it.
    message_s = np.zeros((2, len(num_bytes) + 1, len(links.node_size)))
    s_per_byte, latency_s = links.s_per_byte[:, None], links.latency_s[:, None]
    message_s[:, 1:-1] = latency_s + num_bytes[:-1] * s_per_byte
    front_s, behind_s = _with_across(message_s), _with_across(message_s[:, ::-1])[:, ::-1]
    behind = forward[-1] - forward + backward[-1] - backward
    return Ways(
        forward[:-1] + front_s[:, :-1],
        (backward[:-1] + front_s[:, :-1]) * waits,
        behind + (1 + waits) * behind_s,
    )


def _with_across(message_s: Floats) -> Floats:
    """(2, L + 1, T) row 1: over another node, at the own cut or at one in front of it."""
    near, far = message_s
    before = np.full_like(far, np.inf)
    before[2:] = np.minimum.accumulate(far[1:-1], axis=0)
    return np.stack([near, np.minimum(far, before + near)])
