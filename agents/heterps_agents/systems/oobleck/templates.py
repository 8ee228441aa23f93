"""Oobleck's pipeline templates: the best chain of each size, sets of them, and their batches.

Source: Jang et al., Oobleck, SOSP 2023, sections 4.1 and 4.2, with two changes that its rewrite of
2026 made: the dynamic programme over sub-pipelines is replaced by a search over the bottleneck
stage, because the best part depends on where the bottleneck is, and the batch is distributed by the
slowest pipeline instead of by variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from heterps_configs.errors import InfeasibleError
from heterps_configs.units import bytes_text

# Weights, gradients and two moments of mixed precision, as multiples of the parameters (2023 code).
STATE_FACTOR = 6
# Micro-batches of a pipeline for each of its stages, when templates are compared.
MICRO_BATCHES_PER_STAGE = 4


class Template(NamedTuple):
    """The best split of the layers over a number of stages, one for each node.

    Attributes:
        sizes: Layers of each stage.
        iteration_s: With `MICRO_BATCHES_PER_STAGE` micro-batches for each stage.
    """

    sizes: tuple[int, ...]
    iteration_s: float

    @property
    def micro_batch_s(self) -> float:
        """What one micro-batch adds to its share of an iteration (section 4.2.2)."""
        return self.iteration_s / (MICRO_BATCHES_PER_STAGE * len(self.sizes))


def iteration_s(weights_s: Sequence[float], sizes: Sequence[int]) -> float:
    """Iteration time of a split (section 4.1.2).

    With stages s of w_s seconds, k* the slowest, the last of equals, from 0, and N micro-batches,
    `T = sum w + (N - S + k* - 1) w_k* + sum_{s >= k*} w_s`.

    Args:
        weights_s: Forward plus backward seconds of each layer.
        sizes: Layers of each stage.
    """
    edges = [0]
    for size in sizes:
        edges.append(edges[-1] + size)
    stages = [sum(weights_s[start:stop]) for start, stop in pairwise(edges)]
    slowest = max(range(len(stages)), key=lambda index: (stages[index], index))
    turns = (MICRO_BATCHES_PER_STAGE - 1) * len(stages) + slowest - 1
    return sum(stages) + turns * stages[slowest] + sum(stages[slowest:])


def best_template(weights_s: Sequence[float], num_stages: int) -> Template:
    """The split with the least iteration time, exactly.

    Every range of layers is tried as the bottleneck: no stage in front may be slower, all behind
    must be faster. The fewest stages in front are best, and a greedy fill says how few suffice.

    Args:
        weights_s: Forward plus backward seconds of each layer.
        num_stages: Of the template; not more than there are layers.

    Raises:
        InfeasibleError: There are more stages than layers.
    """
    num_layers = len(weights_s)
    if not 1 <= num_stages <= num_layers:
        raise InfeasibleError(f"{num_layers} layers cannot be cut into {num_stages} stages")
    best: tuple[float, tuple[int, ...]] | None = None
    for start in range(num_layers):
        for stop in range(start + 1, num_layers + 1):
            sizes = _around(weights_s, start, stop, num_stages)
            if sizes is not None:
                found = iteration_s(weights_s, sizes), sizes
                best = found if best is None else min(best, found)
    assert best is not None, "the slowest stage of any split is tried"
    return Template(sizes=best[1], iteration_s=best[0])


def _around(
    weights_s: Sequence[float], start: int, stop: int, num_stages: int
) -> tuple[int, ...] | None:
    """Sizes with the bottleneck at `start .. stop - 1` and as few stages in front as possible."""
    limit_s = sum(weights_s[start:stop])
    front = _greedy(weights_s[:start], lambda seconds: seconds <= limit_s)
    behind = _greedy(weights_s[stop:], lambda seconds: seconds < limit_s)
    if front is None or behind is None:
        return None
    fewest = max(len(front), num_stages - 1 - (len(weights_s) - stop))
    if fewest > min(start, num_stages - 1 - len(behind)):
        return None
    return (
        *_refined(front, fewest),
        stop - start,
        *_refined(behind, num_stages - 1 - fewest),
    )


def _greedy(weights_s: Sequence[float], is_allowed: Callable[[float], bool]) -> list[int] | None:
    """Sizes of the fewest stages that are all allowed; None where one layer is not."""
    sizes: list[int] = []
    seconds = math.inf
    for weight in weights_s:
        if not is_allowed(weight):
            return None
        if sizes and is_allowed(seconds + weight):
            sizes[-1] += 1
            seconds += weight
        else:
            sizes.append(1)
            seconds = weight
    return sizes


def _refined(sizes: Sequence[int], number: int) -> list[int]:
    """The stages cut into more of them, the first that have several layers first."""
    out: list[int] = []
    extra = number - len(sizes)
    for size in sizes:
        cut = min(extra, size - 1)
        extra -= cut
        out += [1] * cut + [size - cut]
    return out


def least_nodes(
    parameter_bytes: Sequence[float],
    node_memory_bytes: float,
    largest_activation_bytes: float = 0.0,
) -> int:
    """Fewest nodes that hold the model (the rule of the code of 2023).

    Args:
        parameter_bytes: Of each layer.
        node_memory_bytes: Of all devices of a node.
        largest_activation_bytes: Of any layer.

    Raises:
        InfeasibleError: A node has no memory.
    """
    need = STATE_FACTOR * sum(parameter_bytes) + largest_activation_bytes
    if node_memory_bytes <= 0:
        raise InfeasibleError(f"the model takes {bytes_text(need)}, and a node has no memory")
    return max(1, math.ceil(need / node_memory_bytes))


def template_sizes(num_nodes: int, least: int, tolerated: int) -> range:
    """Sizes of templates for which any loss of up to `tolerated` nodes leaves a way to go on.

    All from the least to the number of nodes: the paper generates those up to
    `num_nodes - tolerated * least`, which leaves gaps beyond the guarantee (4 and 5 of 9 nodes
    cannot use 6 or 7).

    Raises:
        InfeasibleError: There are too few nodes for one more replica than losses.
    """
    if (tolerated + 1) * least > num_nodes:
        raise InfeasibleError(
            f"{num_nodes} nodes cannot tolerate {tolerated} losses: {tolerated + 1} replicas of at "
            f"least {least} nodes need {(tolerated + 1) * least}"
        )
    return range(least, num_nodes + 1)


def template_sets(
    num_nodes: int, sizes: Sequence[int], at_least: int = 1
) -> Iterator[tuple[int, ...]]:
    """All multisets of sizes that use every node, in ascending order (section 4.2.1).

    Args:
        num_nodes: That the sizes add up to.
        sizes: Of templates.
        at_least: Pipelines in a set: one more than losses that are tolerated.
    """
    ordered = sorted(set(sizes))

    def extended(first: int, left: int, chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if left == 0:
            if len(chosen) >= at_least:
                yield chosen
            return
        for index in range(first, len(ordered)):
            if ordered[index] <= left:
                yield from extended(index, left - ordered[index], (*chosen, ordered[index]))

    return extended(0, num_nodes, ())


def share_micro_batches(
    times_s: Sequence[Callable[[int], float]],
    num_micro_batches: int,
    most: Sequence[int | None] | None = None,
) -> tuple[int, ...]:
    """Micro-batches of each pipeline, at least one, so that the slowest ends first (section 4.2.2).

    One more goes to the pipeline that ends it first and has room for it, which is optimal where
    more micro-batches never take less time: a pipeline is passed over only if it would end later.

    Args:
        times_s: For each pipeline its seconds with a number of micro-batches; not decreasing.
        num_micro_batches: Of the global batch.
        most: Micro-batches that each has memory for; None: any number.

    Raises:
        InfeasibleError: There are fewer micro-batches than pipelines, or too little room.
    """
    limits = [limit or num_micro_batches for limit in most or [None] * len(times_s)]
    if num_micro_batches < len(times_s):
        raise InfeasibleError(
            f"{num_micro_batches} micro-batches cannot keep {len(times_s)} pipelines busy"
        )
    if sum(limits) < num_micro_batches:
        raise InfeasibleError(
            f"the pipelines have room for {sum(limits)} of {num_micro_batches} micro-batches"
        )
    shares = [1] * len(times_s)
    for _ in range(num_micro_batches - len(times_s)):
        able = [index for index, share in enumerate(shares) if share < limits[index]]
        first = min(able, key=lambda index: (times_s[index](shares[index] + 1), index))
        shares[first] += 1
    return tuple(shares)
