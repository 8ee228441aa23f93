"""Layers that are computed again: what their bytes cost in seconds, for one stage.

Elsewhere a stage that may compute layers again has the seconds of one that does not, and the bytes
of one that does. Here it pays for each byte it lacks: with the layers first that free most for
their forward passes, the last one in part. So a stage holds more micro-batches at once, and then
does each of them slower, or fewer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import uncounted_helper
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.needs import Needs, dropped_bytes
from heterps_envs.step_bounds.shares import ROUNDING, by_memory, micro_batches_in, quotient, whole


class Again(NamedTuple):
    """What may be computed again.

    Attributes:
        num_bytes: (L, O) that are freed of one full micro-batch.
        order: (L, O) layers of each kind of group, those first that free most in a second.
        is_at_once: A device holds all of its micro-batches together.
    """

    num_bytes: Floats
    order: Integers
    is_at_once: bool

    @classmethod
    def of(cls, problem: Problem, needs: Needs) -> Again:
        """The layers of a problem."""
        num_bytes = dropped_bytes(problem)
        forward_s = np.maximum(np.diff(needs.forward_s, axis=0), 1e-300)
        order = np.argsort(-num_bytes / forward_s, axis=0, kind="stable")
        is_at_once = problem.job.schedule == "gpipe"
        return cls(np.ascontiguousarray(num_bytes), np.ascontiguousarray(order), is_at_once)


@uncounted_helper
def micro_batches_with(
    n: Any, again: Any, span: Any, seconds: Any, room: float, gradients: float
) -> float:
    """As `shares.micro_batches_in`, where bytes that are freed take their seconds.

    Args:
        n: `Needs`.
        again: `Again`.
        span: The option, first layer, and the layer after the last.
        seconds: Between the ways in and out, and from a forward to its backward pass.
        room: Bytes beside weights and optimizer state.
        gradients: Bytes of them.
    """
    left, around = seconds
    most = float(micro_batches_in(n, span, left, around, room, gradients))
    option, first, stop = span
    freed = 0.0
    for layer in range(first, stop):
        freed += again.num_bytes[layer, option]
    if most <= 0 or not n.are_equal or not (freed > 0 or again.is_at_once):
        return most
    kept = n.kept_bytes[stop, option] - n.kept_bytes[first, option] + freed
    kept = n.unit * (kept + n.front_bytes[first, option] + n.back_bytes[stop - 1, option])
    best = _with_seconds(n, again, span, seconds, 0.0, (room, gradients, kept))
    for held in range(1, round(most / n.unit) + 1):
        # From the first backward pass on there is less room.
        for least in (room / held, (room - gradients) / held):
            if best >= most or least >= kept:
                continue
            each_s = _seconds_for(n, again, span, (kept - least) / n.unit)
            found = _with_seconds(n, again, span, seconds, each_s, (room, gradients, least))
            best = max(best, found)
    return min(best, most)


@uncounted_helper
def _with_seconds(
    n: Any, again: Any, span: Any, seconds: Any, each_s: float, num_bytes: Any
) -> float:
    """Micro-batches that take `each_s` more, of so many bytes each."""
    option, first, stop = span
    (left, around), (room, gradients, kept) = seconds, num_bytes
    if each_s == math.inf:
        return 0.0
    forward = n.forward_s[stop, option] - n.forward_s[first, option]
    backward = n.backward_s[stop, option] - n.backward_s[first, option] + each_s
    share = quotient(left, forward + backward)
    share = min(share, quotient(left - n.unit * forward - around, backward))
    share = min(share, quotient(left - n.unit * backward - around, forward))
    once_s = n.unit * (forward + backward) + around
    times = 1.0 if again.is_at_once else left / max(once_s, 1e-300)
    share = min(share, by_memory(n, room, gradients, kept, times))
    return float(max(0.0, whole(n, share)))


@uncounted_helper
def _seconds_for(n: Any, again: Any, span: Any, num_bytes: float) -> float:
    """Seconds of a full micro-batch to free so many bytes; inf: there are not so many."""
    option, first, stop = span
    found = 0.0
    for place in range(len(again.order)):
        layer = again.order[place, option]
        if num_bytes <= 0:
            break
        own = again.num_bytes[layer, option]
        if first <= layer < stop and own > 0:
            part = min(1.0, num_bytes / own)
            found += part * (n.forward_s[layer + 1, option] - n.forward_s[layer, option])
            num_bytes -= own
    return found if num_bytes <= ROUNDING * n.room_bytes[option] else math.inf
