"""The kernel of HARP's cut: the least fill of a pipeline whose stages all keep a period."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_agents.systems.harp.cost import launch_count
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import MINUS_ONE, ZERO, checked, checked_helper

# What rounding may add to a period.
_ROUNDING = 1 + 1e-12


class Islands(NamedTuple):
    """L layers, and C islands of equal devices in the order in which stages are placed on them.

    Attributes:
        num_micro_batches: Of a step.
        is_gpipe: Stages hold all of their micro-batches.
        compute_s: (L + 1, C) of the layers in front, forward and backward, on one device.
        state_bytes: (L + 1,) of the layers in front.
        activation_bytes: (L + 1,) the same, of a micro-batch.
        output_bytes: (L + 1,) over the cut in front of each layer.
        memory_bytes: (C,) of a device.
        device_count: (C,) of each island.
        sizes: Replicas that a stage may have, the fewest first.
        latency_s: (C, C) there and back.
        inverse_bandwidth: (C, C) seconds per byte, there and back.
        slower_inverse_bandwidth: (C, C) of the slower direction.
    """

    num_micro_batches: int
    is_gpipe: bool
    compute_s: Floats
    state_bytes: Floats
    activation_bytes: Floats
    output_bytes: Floats
    memory_bytes: Floats
    device_count: Integers
    sizes: Integers
    latency_s: Floats
    inverse_bandwidth: Floats
    slower_inverse_bandwidth: Floats


class Cuts(NamedTuple):
    """Least fills, and where they come from: by first layer, island and devices used of it.

    Attributes:
        fill_s: (L, C, U + 1) of the stages from a layer on, the first of them on the island; inf:
            impossible.
        stop: (L, C, U + 1) the layer behind that first stage.
        island: The island of the stage behind it.
        used: Devices of that island which the stages behind use.
        replicas: Of the first stage.
    """

    fill_s: Floats
    stop: Integers
    island: Integers
    used: Integers
    replicas: Integers


@checked_helper
def stage_bytes(
    islands: Islands, start: int, stop: int, replicas: int, behind_s: float, period_s: float
) -> float:
    """Memory of a replica of the layers `start .. stop - 1` with what it has in flight."""
    held = (islands.num_micro_batches + replicas - 1) // replicas
    if not islands.is_gpipe:
        held = min(held, launch_count(behind_s, period_s, replicas))
    kept = islands.activation_bytes[stop] - islands.activation_bytes[start]
    return islands.state_bytes[stop] - islands.state_bytes[start] + held * kept  # type: ignore[no-any-return]


@checked
def message_s(islands: Islands, cut: int, front: int, behind: int) -> float:
    """Seconds of a message and its gradient between two islands."""
    own = islands.output_bytes[cut] * islands.inverse_bandwidth[front, behind]
    return islands.latency_s[front, behind] + own  # type: ignore[no-any-return]


@checked
def least_fills(islands: Islands, period_s: float) -> Cuts:
    """The least fills of all ends of the model, built from the last layer to the first.

    A stage keeps the period if its replicas together compute a micro-batch in it, and send one.
    Of all ends that begin alike, the one with the least fill also lets the stages in front hold
    fewest micro-batches, so no other one is needed.
    """
    num_layers, num_islands = len(islands.compute_s) - 1, len(islands.memory_bytes)
    shape = num_layers, num_islands, int(islands.device_count.max()) + 1
    cuts = Cuts(
        np.full(shape, np.inf),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
    )
    fewest = np.zeros((num_layers, num_islands), np.int64)
    for start in range(num_layers - 1, -1, -1):
        for stop in range(start + 1, num_layers + 1):
            is_too_long = True
            for island in range(num_islands):
                _add_stage(islands, period_s, cuts, fewest, (start, stop, island))
                compute_s = islands.compute_s[stop, island] - islands.compute_s[start, island]
                is_too_long &= compute_s > islands.sizes[-1] * period_s * _ROUNDING
            if is_too_long:
                break
        for island in range(num_islands):
            fewest[start, island] = np.argmin(cuts.fill_s[start, island])
    return cuts


@checked_helper
def _add_stage(
    islands: Islands,
    period_s: float,
    cuts: Cuts,
    fewest: Integers,
    stage: tuple[int, int, int],
) -> None:
    """One stage in front of all ends that it fits to, with every number of replicas."""
    start, stop, island = stage
    num_layers, num_islands = len(islands.compute_s) - 1, len(islands.memory_bytes)
    compute_s = islands.compute_s[stop, island] - islands.compute_s[start, island]
    most = islands.device_count[island]
    for replicas in islands.sizes:
        if replicas > most:
            break
        if compute_s > replicas * period_s * _ROUNDING:
            continue
        if stop == num_layers:
            _update(islands, period_s, cuts, stage, (MINUS_ONE, ZERO, replicas), 0.0)
            continue
        for other in range(island, num_islands):
            sent_s = islands.output_bytes[stop] * islands.slower_inverse_bandwidth[island, other]
            if sent_s > replicas * period_s * _ROUNDING:
                continue
            first, last = 1, most - replicas
            if other != island:
                first = last = fewest[stop, other]
            link_s = message_s(islands, stop, island, other)
            for used in range(first, last + 1):
                behind_s = link_s + cuts.fill_s[stop, other, used]
                if behind_s < np.inf:
                    _update(islands, period_s, cuts, stage, (other, used, replicas), behind_s)


@checked_helper
def _update(
    islands: Islands,
    period_s: float,
    cuts: Cuts,
    stage: tuple[int, int, int],
    behind: tuple[int, int, int],
    behind_s: float,
) -> None:
    """Takes a stage in front of an end, if it has room and the fill is less than what was there."""
    start, stop, island = stage
    other, used, replicas = behind
    in_use = replicas + (used if other == island else 0)
    compute_s = islands.compute_s[stop, island] - islands.compute_s[start, island]
    if compute_s + behind_s >= cuts.fill_s[start, island, in_use]:
        return
    needed = stage_bytes(islands, start, stop, replicas, behind_s, period_s)
    if needed <= islands.memory_bytes[island]:
        cuts.fill_s[start, island, in_use] = compute_s + behind_s
        cuts.stop[start, island, in_use] = stop
        cuts.island[start, island, in_use] = other
        cuts.used[start, island, in_use] = used
        cuts.replicas[start, island, in_use] = replicas
