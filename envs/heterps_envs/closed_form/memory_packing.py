"""The least device memory with which a chain of layers has a placement at all.

Every stage stands on one device, and devices follow each other in some order. For one order the
best is plain: each device, from the last stage on, takes as many layers as it holds. (More layers
behind never leave more for the devices in front.) Good orders are found by exchanging devices.
What comes out is a scale with which a placement exists for certain, and in nearly all problems the
least one; replicas of a stage, which share its micro-batches, may rarely do with less.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.compiled import checked, checked_helper

# Exchanges that are tried, and bisections of a scale once an order is known to be better.
EXCHANGES, BISECTIONS = 200, 40
# An order has to be so much better that no rounding decides.
_GAIN = 1e-3


def least_memory_scale(
    state_bytes: Floats,
    activation_bytes: Floats,
    memory_bytes: Floats,
    device_count: NDArray[np.int64],
    num_micro_batches: int,
    is_gpipe: bool,
    rng: np.random.Generator,
) -> float:
    """The smallest factor on all memories with which the search finds a placement.

    Args:
        state_bytes: (L,) of the layers.
        activation_bytes: (L,) of one micro-batch.
        memory_bytes: (T,) of one device of each class, all positive.
        device_count: (T,) devices of each class.
        num_micro_batches: M.
        is_gpipe: Whether all of them are in flight.
        rng: Draws the exchanges.
    """
    state, activation = (
        np.concatenate([[0.0], np.cumsum(values)]) for values in (state_bytes, activation_bytes)
    )
    each = np.repeat(memory_bytes, device_count)
    return float(
        _search(
            state,
            activation,
            each[np.argsort(-each, kind="stable")],
            num_micro_batches,
            is_gpipe,
            rng.random((EXCHANGES, 2)),
        )
    )


@checked_helper
def _fits(
    state: Any, activation: Any, memory: Any, scale: float, num_micro_batches: int, is_gpipe: bool
) -> bool:
    """Whether devices in this order, last stage first, hold all layers."""
    stop, behind = len(state) - 1, 0
    for device in range(len(memory)):
        held = in_flight(num_micro_batches, is_gpipe, 1, behind)
        room = scale * memory[device]
        start = stop
        while start > 0 and (
            state[stop] - state[start - 1] + held * (activation[stop] - activation[start - 1])
            <= room
        ):
            start -= 1
        if start == 0:
            return True
        # A device that holds no layer here is no stage.
        behind += start < stop
        stop = start
    return False


@checked
def _search(
    state: Any,
    activation: Any,
    memory: Any,
    num_micro_batches: int,
    is_gpipe: bool,
    draws: Any,
) -> float:
    held = in_flight(num_micro_batches, is_gpipe, 1, 0)
    needed = state[-1] + held * activation[-1]
    # All layers on the first device, the largest.
    best, least = needed / memory.max(), needed / memory.sum()
    for attempt in range(len(draws) + 2):
        one = two = 0
        if attempt == 1:
            memory = memory[::-1].copy()
        elif attempt > 1:
            one = int(draws[attempt - 2, 0] * len(memory))
            two = int(draws[attempt - 2, 1] * len(memory))
            if memory[one] == memory[two]:
                continue
            memory[one], memory[two] = memory[two], memory[one]
        enough = best * (1.0 - _GAIN)
        if _fits(state, activation, memory, enough, num_micro_batches, is_gpipe):
            low, high = least, enough
            for _ in range(BISECTIONS):
                middle = 0.5 * (low + high)
                if _fits(state, activation, memory, middle, num_micro_batches, is_gpipe):
                    high = middle
                else:
                    low = middle
            best = high
        elif attempt == 1:
            memory = memory[::-1].copy()
        elif attempt > 1:
            memory[one], memory[two] = memory[two], memory[one]
    return float(best)
