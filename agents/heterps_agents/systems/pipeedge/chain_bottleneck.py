"""Exact split of a chain whose stages and messages overlap: the slowest of them sets the pace.

    bottleneck_s = max(seconds of every stage, bytes / bandwidth of every message between stages)

Every stage runs on one device, any order of the devices is allowed, and devices may stay idle. This
is a pipeline that only infers, as PipeEdge schedules it, and what a device map of one model means
when its layers are fed by a stream of batches. Devices of one class are alike, so a state is how
many of each class are used, the class of the last one, and how many layers are covered: the
smallest bottleneck over all of them is found by one sweep, `O(states * classes * layers)`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.units import bytes_text
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked

# States times transitions that the sweep takes on: some seconds.
MAX_WORK = 3_000_000_000
# Of what it keeps for each state, class and layer: two numbers.
MAX_TABLE_BYTES, BYTES_EACH = 2_000_000_000, 16


class Chain(NamedTuple):
    """A chain of L layers and T classes of devices.

    Attributes:
        seconds: (L, T) of each layer on each class, for one batch.
        memory_bytes: (L,) of each layer, wherever it is.
        cut_bytes: (L + 1,) that enter each layer, and leave the last one.
        buffers: Copies of what enters and of what leaves a stage that its device holds.
        counts: (T,) devices of each class.
        capacity_bytes: (T,) a stage must need less.
        bandwidth_bytes_per_s: (T, T) from a device of one class to one of another, or the same.
    """

    seconds: Floats
    memory_bytes: Floats
    cut_bytes: Floats
    buffers: float
    counts: Integers
    capacity_bytes: Floats
    bandwidth_bytes_per_s: Floats


class ChainStage(NamedTuple):
    """Layers `first_layer .. end_layer - 1` on one device of a class (by its index)."""

    device_class: int
    first_layer: int
    end_layer: int


class ChainSplit(NamedTuple):
    """An optimal split: no other has a smaller bottleneck."""

    bottleneck_s: float
    stages: tuple[ChainStage, ...]


def split_chain(chain: Chain) -> ChainSplit:
    """The split with the smallest bottleneck; of equal ones, one with the fewest devices.

    Raises:
        InfeasibleError: The layers do not fit on the devices.
        HeterpsError: There are too many combinations of devices to try them all.
    """
    num_layers, num_classes = chain.seconds.shape
    # Every stage has a layer of its own, so no class needs more devices than there are layers.
    chain = chain._replace(counts=np.minimum(chain.counts, num_layers))
    combinations = math.prod(int(count) + 1 for count in chain.counts)
    work = combinations * (num_classes * num_layers) ** 2 // 2
    if work > MAX_WORK:
        raise HeterpsError(f"splitting the chain exactly takes {work} steps; at most {MAX_WORK}")
    table_bytes = combinations * num_classes * (num_layers + 1) * BYTES_EACH
    if table_bytes > MAX_TABLE_BYTES:
        raise HeterpsError(
            f"splitting the chain exactly takes {bytes_text(table_bytes)}; at most "
            f"{bytes_text(MAX_TABLE_BYTES)}"
        )
    strides = np.concatenate(([1], np.cumprod(chain.counts + 1)))
    # Where every state came from: the state before its last stage, as one integer.
    best, origin = _sweep(chain, strides)
    used = np.arange(strides[-1])[:, None] // strides[:-1] % (chain.counts + 1)
    final = best[:, :, num_layers]
    if not np.isfinite(final).any():
        raise InfeasibleError(
            "no split of the layers fits in the memory of the devices, in any order"
        )
    ties = np.where(final == final.min(), used.sum(axis=1)[:, None], np.iinfo(np.int64).max)
    state, device_class = (int(value) for value in np.unravel_index(ties.argmin(), ties.shape))
    stages: list[ChainStage] = []
    end = num_layers
    while end:
        code = int(origin[state, device_class, end])
        before_state, before_class, first = _decoded(code, num_classes, num_layers)
        stages.append(ChainStage(device_class, first, end))
        state, device_class, end = before_state, before_class, first
    return ChainSplit(float(final.min()), tuple(reversed(stages)))


def bottleneck_s(chain: Chain, stages: tuple[ChainStage, ...]) -> float:
    """The bottleneck of a split; infinite if a stage does not fit or a class is used too often."""
    slowest = 0.0
    for index, stage in enumerate(stages):
        layers = slice(stage.first_layer, stage.end_layer)
        crossing = chain.cut_bytes[stage.first_layer] + chain.cut_bytes[stage.end_layer]
        needed = chain.memory_bytes[layers].sum() + chain.buffers * crossing
        if needed >= chain.capacity_bytes[stage.device_class]:
            return float("inf")
        slowest = max(slowest, float(chain.seconds[layers, stage.device_class].sum()))
        if index:
            link = chain.bandwidth_bytes_per_s[stages[index - 1].device_class, stage.device_class]
            slowest = max(slowest, float(chain.cut_bytes[stage.first_layer] / link))
    classes = [stage.device_class for stage in stages]
    if any(classes.count(index) > count for index, count in enumerate(chain.counts)):
        return float("inf")
    return slowest


def _decoded(code: int, num_classes: int, num_layers: int) -> tuple[int, int, int]:
    rest, first = divmod(code, num_layers + 1)
    state, device_class = divmod(rest, num_classes)
    return state, device_class, first


@checked
def _sweep(chain: Chain, strides: Integers) -> tuple[Floats, Integers]:
    """Smallest bottleneck by devices used, class of the last stage and layers covered."""
    num_layers, num_classes = chain.seconds.shape
    num_states = strides[num_classes]
    best = np.full((num_states, num_classes, num_layers + 1), np.inf)
    origin = np.zeros((num_states, num_classes, num_layers + 1), np.int64)
    # Without a device, the class of the last one has no meaning: class 0 stands for it.
    best[0, 0, 0] = 0.0
    for state in range(num_states):
        for last in range(num_classes):
            for first in range(num_layers):
                value = best[state, last, first]
                if value == np.inf:
                    continue
                code = (state * num_classes + last) * (num_layers + 1) + first
                for chosen in range(num_classes):
                    if (
                        state // strides[chosen] % (chain.counts[chosen] + 1)
                        == chain.counts[chosen]
                    ):
                        continue
                    reached = state + strides[chosen]
                    start = value
                    if first > 0:
                        link = chain.bandwidth_bytes_per_s[last, chosen]
                        start = max(start, chain.cut_bytes[first] / link)
                    seconds, held = 0.0, 0.0
                    for layer in range(first, num_layers):
                        seconds += chain.seconds[layer, chosen]
                        held += chain.memory_bytes[layer]
                        if held >= chain.capacity_bytes[chosen]:
                            break
                        crossing = chain.cut_bytes[first] + chain.cut_bytes[layer + 1]
                        if held + chain.buffers * crossing >= chain.capacity_bytes[chosen]:
                            continue
                        slowest = max(start, seconds)
                        if slowest < best[reached, chosen, layer + 1]:
                            best[reached, chosen, layer + 1] = slowest
                            origin[reached, chosen, layer + 1] = code
    return best, origin
