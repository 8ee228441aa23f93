"""Cephalo's two knobs: how many samples each device takes, and what it holds of the state.

Samples come first, by dynamic programming over (device, samples taken, sum of the micro-batches'
sizes): what all devices keep for their micro-batches, and the whole state, fit in a part of all
memory together. Then the state is shared out, as evenly as what is left on each device allows.
Uneven shards make collectives longer, so the best answer with even shards competes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.cephalo.cost import (
    FURTHER_S,
    Collectives,
    DeviceTimes,
    device_seconds,
)
from heterps_agents.systems.cephalo.state import water_filled
from heterps_agents.systems.cephalo.ways import Batch, Ways, shortest, ways_of

# Published: the part of the memory that is counted on.
USABLE = 0.75


class Case(NamedTuple):
    """What is shared out over some devices.

    Attributes:
        times: Of each device.
        memory_bytes: Of each device.
        collectives: Over all of them, with even shards.
        num_samples: Of a step.
        sizes: Samples that a micro-batch may have.
        state_bytes: Weights, gradients and optimizer state of the model.
        sample_bytes: Kept for each sample of a micro-batch.
        most_counts: Micro-batches that each device may take; empty: any number.
        further_s: See `device_seconds`.
    """

    times: Sequence[DeviceTimes]
    memory_bytes: Sequence[float]
    collectives: Collectives
    num_samples: int
    sizes: Sequence[int]
    state_bytes: float
    sample_bytes: float
    most_counts: Sequence[int] = ()
    further_s: float = FURTHER_S


class Answer(NamedTuple):
    """Batches and bytes of the state for each device, and the seconds of a step."""

    batches: tuple[Batch, ...]
    state_bytes: tuple[float, ...]
    seconds: float


def best_answer(case: Case) -> Answer | None:
    """The shares with the least seconds by Cephalo's cost; None where the memory does not suffice.

    Raises:
        HeterpsError: There are too many combinations.
    """
    found = [each for each in (_even_shards(case), _uneven_shards(case)) if each is not None]
    return min(found, key=lambda each: each.seconds, default=None)


def least_seconds(case: Case, device: int, num_samples: int) -> float:
    """Seconds of a device for some samples, in the best micro-batches; inf where none fit."""
    ways = _ways(case, device, case.collectives, 0.0)
    return float(ways.seconds[ways.samples == num_samples].min(initial=math.inf))


def seconds_of(case: Case, collectives: Collectives, batches: Sequence[Batch]) -> float:
    """Seconds of a step of some batches, with some collectives."""
    longest = 0.0
    for times, batch in zip(case.times, batches, strict=True):
        count, size = np.array([batch.micro_batches]), np.array([batch.size])
        own = device_seconds(times, collectives, count, size, case.further_s)
        longest = max(longest, float(own[0]))
    return longest


def _even_shards(case: Case) -> Answer | None:
    share = case.state_bytes / len(case.times)
    if share > USABLE * min(case.memory_bytes):
        return None
    # Every device has room for what it takes, so all together have.
    ways = _all_ways(case, case.collectives, share)
    found = shortest(ways, case.num_samples, math.inf)
    return found and Answer(found[0], (share,) * len(case.times), found[1])


def _uneven_shards(case: Case) -> Answer | None:
    left = USABLE * sum(case.memory_bytes) - case.state_bytes
    if left < 0:
        return None
    ways = _all_ways(case, case.collectives.uneven(), 0.0)
    most_together = left / case.sample_bytes if case.sample_bytes else math.inf
    found = shortest(ways, case.num_samples, most_together)
    if found is None:
        return None
    batches, seconds = found
    room = [
        USABLE * memory - batch.size * case.sample_bytes
        for memory, batch in zip(case.memory_bytes, batches, strict=True)
    ]
    # The room is enough, but perhaps for a rounding.
    state = water_filled(min(case.state_bytes, sum(room)), room)
    assert state is not None, "there is as much room as is asked for"
    return Answer(batches, tuple(state), seconds)


def _all_ways(case: Case, collectives: Collectives, share: float) -> list[Ways]:
    known: dict[tuple[int, float, int], Ways] = {}
    found = []
    for device, (times, memory) in enumerate(zip(case.times, case.memory_bytes, strict=True)):
        # Devices of a type have the same object.
        key = id(times), memory, _most_count(case, device)
        if key not in known:
            known[key] = _ways(case, device, collectives, share)
        found.append(known[key])
    return found


def _ways(case: Case, device: int, collectives: Collectives, share: float) -> Ways:
    room = USABLE * case.memory_bytes[device] - share
    return ways_of(
        case.times[device],
        collectives,
        case.num_samples,
        [size for size in case.sizes if size * case.sample_bytes <= room],
        _most_count(case, device),
        case.further_s,
    )


def _most_count(case: Case, device: int) -> int:
    return case.most_counts[device] if case.most_counts else case.num_samples
