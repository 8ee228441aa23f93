"""Shapes of random graphs: families of models, drawn with relative sizes of their nodes.

A family builds block after block until there are enough nodes, and what stands beyond the wanted
number is cut off; the last node then reads every output that nobody else reads, as a loss does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats


class GraphShape(NamedTuple):
    """V nodes in topological order; sizes are relative, 1 for a usual node.

    Attributes:
        producers: For each node, ascending, whose output it reads.
        work: (V,) arithmetic.
        output: (V,) size of the output.
        parameters: (V,).
    """

    producers: list[list[int]]
    work: Floats
    output: Floats
    parameters: Floats


class _Builder:
    """Takes nodes one after another."""

    def __init__(self, rng: np.random.Generator, num_nodes: int) -> None:
        self.rng, self.num_nodes = rng, num_nodes
        self.producers: list[list[int]] = []
        self.sizes: list[tuple[float, float, float]] = []

    @property
    def is_full(self) -> bool:
        return len(self.producers) >= self.num_nodes

    def add(
        self,
        producers: Sequence[int] = (),
        work: float = 1.0,
        output: float = 1.0,
        parameters: float = 1.0,
    ) -> int:
        """Appends a node; returns its number."""
        self.producers.append(sorted(set(producers)))
        self.sizes.append((work, output, parameters))
        return len(self.producers) - 1

    def chain(self, start: int, length: int) -> int:
        """Appends some usual nodes one after another; returns the last."""
        for _ in range(length):
            start = self.add([start])
        return start

    def whole(self, low: int, high: int) -> int:
        """A random whole number, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def shape(self) -> GraphShape:
        """The graph, cut to the wanted number of nodes."""
        count = self.num_nodes
        producers = self.producers[:count]
        read = {producer for entry in producers for producer in entry}
        unread = set(range(count - 1)) - read
        producers[-1] = sorted(unread | set(producers[-1]))
        work, output, parameters = np.array(self.sizes[:count]).T
        return GraphShape(producers, work, output, parameters)


def _layered(builder: _Builder) -> None:
    """Random layers; each node reads up to three of the layer before, now and then one earlier."""
    rng, width = builder.rng, builder.whole(2, 6)
    layers = [[builder.add() for _ in range(builder.whole(1, width))]]
    while not builder.is_full:
        layer = []
        for _ in range(builder.whole(1, width)):
            count = min(len(layers[-1]), builder.whole(1, 3))
            reads = [int(node) for node in rng.choice(layers[-1], count, replace=False)]
            if len(layers) > 1 and rng.random() < 0.1:
                reads.append(int(rng.choice(layers[-2])))
            layer.append(builder.add(reads))
        layers.append(layer)


def _fork_join(builder: _Builder) -> None:
    """Modules of parallel branches of unequal length between a fork and a join (Inception)."""
    fork = builder.add()
    while not builder.is_full:
        branches = range(builder.whole(2, 5))
        ends = [builder.chain(fork, builder.whole(1, 4)) for _ in branches]
        fork = builder.add(ends, work=0.3, parameters=0.1)


def _multi_tower(builder: _Builder) -> None:
    """Towers of their own inputs, then one trunk (recommenders, models of several modalities)."""
    rng, towers = builder.rng, builder.whole(2, 5)
    ends = [builder.add(work=0.3, parameters=6.0) for _ in range(towers)]
    weight = rng.dirichlet(np.full(towers, 3.0))
    merge = int(builder.num_nodes * rng.uniform(0.6, 0.9))
    while len(builder.producers) < merge:
        tower = int(rng.choice(towers, p=weight))
        ends[tower] = builder.add([ends[tower]])
    builder.chain(builder.add(ends), max(0, builder.num_nodes - merge))


def _unet(builder: _Builder) -> None:
    """Levels down and up again; each level's output skips to its mirror image.

    Half of them have attention beside the blocks, half a second encoder that steers the first
    (ControlNet).
    """
    rng, depth = builder.rng, builder.whole(2, 4)
    has_attention, encoders = rng.random() < 0.5, 1 + int(rng.random() < 0.5)
    levels = (encoders + 1) * depth + 1
    blocks = max(1, round(builder.num_nodes / (levels * (3 if has_attention else 1))))

    def level(reads: Sequence[int], scale: float) -> int:
        for _ in range(blocks):
            block = builder.add(reads, output=scale, parameters=1 / scale)
            if has_attention:
                left = builder.add([block], work=0.5, output=scale)
                right = builder.add([block], work=0.7, output=scale)
                block = builder.add([left, right], work=0.3, output=scale)
            reads = [block]
        return reads[0]

    ends = [builder.add(work=0.3, output=2.0) for _ in range(encoders)]
    skips = []
    for index in range(depth):
        ends = [level([end], 2.0 ** (1 - index)) for end in ends]
        skips.append(ends)
    end = level(ends, 2.0 ** (1 - depth))
    for index in reversed(range(depth)):
        end = level([end, *skips[index]], 2.0 ** (1 - index))
    builder.chain(end, max(0, builder.num_nodes - len(builder.producers)))


def _moe(builder: _Builder) -> None:
    """Attention, a router, experts side by side with many parameters, a join with the residual."""
    experts = builder.whole(2, 8)
    end = builder.add(work=0.2, parameters=4.0)
    while not builder.is_full:
        attention = builder.add([end])
        router = builder.add([attention], work=0.1, parameters=0.1)
        used = builder.rng.dirichlet(np.full(experts, 4.0)) * experts
        parts = [
            builder.add([router], work=1.5 * float(share), output=float(share), parameters=4.0)
            for share in used
        ]
        end = builder.add([attention, *parts], work=0.2, parameters=0.1)


def _transformer(builder: _Builder) -> None:
    """Blocks of heads side by side, projection, sharded feed-forward layers, and residuals."""
    heads, shards = builder.whole(2, 6), builder.whole(1, 3)
    end = builder.add(work=0.2, parameters=4.0)
    while not builder.is_full:
        norm = builder.add([end], work=0.1, parameters=0.1)
        attention = [
            builder.add([norm], work=2 / heads, output=1 / heads, parameters=1 / heads)
            for _ in range(heads)
        ]
        middle = builder.add([end, *attention], work=0.7, parameters=0.3)
        parts = [
            builder.add([middle], work=3 / shards, parameters=2 / shards) for _ in range(shards)
        ]
        end = builder.add([middle, *parts], work=0.2, parameters=0.1)


_FAMILIES: dict[str, Callable[[_Builder], None]] = {
    "layered": _layered,
    "fork-join": _fork_join,
    "multi-tower": _multi_tower,
    "unet": _unet,
    "moe": _moe,
    "transformer": _transformer,
}
GRAPH_FAMILIES = tuple(_FAMILIES)


def draw_shape(family: str, num_nodes: int, rng: np.random.Generator) -> GraphShape:
    """A random graph of a family with exactly `num_nodes` nodes."""
    builder = _Builder(rng, num_nodes)
    _FAMILIES[family](builder)
    builder.chain(len(builder.producers) - 1, max(0, num_nodes - len(builder.producers)))
    return builder.shape()
