"""Operator graphs as chains of layers, with a bound on what this can cost.

The groups of a graph in their execution order (`convex_groups`) are parted into layers, and only
cuts between layers stay possible. Take any split along that order and move each of its cuts that
lies inside a layer to the layer's edge: backwards, but away from a CPU. An accelerator then gains
at most the seconds of one layer (of two beside a CPU) and pays at most the nets of its two new
cuts. So with layers the least largest load along this order is at most `loss_bound_s` higher;
layers of one group cost nothing. Layers with the least such bound are then cut further while there
may be more, which is never a loss. Memory is left out of this: a layer must fit as a whole.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from heterps_agents.splits.convex_groups import convex_groups
from heterps_agents.splits.ideals import ideal_tables
from heterps_configs.documents.model_profile import LayerProfile, Measurement, ModelProfile
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.graphs.operators import graph_arrays

# Limits on a cut's seconds that are tried; the best of them is taken.
_CUT_LIMITS = 32
_HALVINGS = 40
_BYTES_PER_PARAMETER = 4


@dataclass(frozen=True)
class LayerChain:
    """A graph's nodes as layers in execution order.

    Attributes:
        graph: The graph, every node in the colour class of its layer: any solver takes it.
        layers: Indices of the nodes of each layer.
        loss_bound_s: How much higher the least largest load along the execution order can be,
            compared with cuts anywhere in it.
    """

    graph: OperatorGraph
    layers: tuple[tuple[int, ...], ...]
    loss_bound_s: float


class _Order(NamedTuple):
    """(G + 1,) sums over the first groups of the order, and the seconds of the cut behind them."""

    accelerator_s: Floats
    cpu_s: Floats
    cut_s: Floats


def coarsen(graph: OperatorGraph, most_layers: int) -> LayerChain:
    """Layers with a small loss bound.

    Args:
        graph: The graph with its devices.
        most_layers: How many layers there may be.

    Raises:
        HeterpsError: `most_layers` is below 1, or a backward node feeds a forward node.
    """
    if most_layers < 1:
        raise HeterpsError(f"most_layers: {most_layers}, but a graph has at least one layer")
    groups = convex_groups(graph_arrays(graph))
    prefixes = ideal_tables(groups, len(groups.cpu_s) + 1, linear=True)
    assert prefixes is not None
    order = _Order(prefixes.accelerator_s, prefixes.cpu_s, prefixes.cut_s)
    best, loss_s = np.array([0, len(groups.cpu_s)]), math.inf
    limits = np.unique(
        np.quantile(order.cut_s[1:-1], np.linspace(0, 1, _CUT_LIMITS), method="lower")
        if len(order.cut_s) > 2
        else [0.0]
    )
    for limit_s in limits:
        cuts = _fewest_seconds(order, np.flatnonzero(order.cut_s <= limit_s), most_layers)
        if cuts is not None and _loss_s(graph, order, cuts) < loss_s:
            best, loss_s = cuts, _loss_s(graph, order, cuts)
    best = _refined(order, best, most_layers)
    layer_of_group = np.searchsorted(best, np.arange(len(groups.cpu_s)), side="right") - 1
    layer_of_node = layer_of_group[groups.group_of_node]
    nodes = tuple(
        node.changed(color_class=int(layer))
        for node, layer in zip(graph.nodes, layer_of_node, strict=True)
    )
    return LayerChain(
        graph=graph.changed(nodes=nodes),
        layers=tuple(
            tuple(np.flatnonzero(layer_of_node == layer).tolist()) for layer in range(len(best) - 1)
        ),
        loss_bound_s=min(loss_s, _loss_s(graph, order, best)),
    )


def _loss_s(graph: OperatorGraph, order: _Order, cuts: Integers) -> float:
    """The bound of the module's docstring for these layers."""
    merged = np.diff(cuts) > 1
    if not merged.any():
        return 0.0
    sides = 2 if graph.num_cpus else 1
    loss_s = sides * np.diff(order.accelerator_s[cuts])[merged].max() + 2 * order.cut_s[cuts].max()
    if graph.num_cpus > 1:
        loss_s = max(loss_s, np.diff(order.cpu_s[cuts])[merged].max())
    return float(loss_s)


def _refined(order: _Order, cuts: Integers, most_layers: int) -> Integers:
    """Cuts the longest layers again while there may be more: a further cut is never a loss."""
    places = cuts.tolist()
    while len(places) <= most_layers:
        merged = [(a, b) for a, b in pairwise(places) if b > a + 1]
        if not merged:
            break
        start, end = max(
            merged, key=lambda ends: order.accelerator_s[ends[1]] - order.accelerator_s[ends[0]]
        )
        sums = order.accelerator_s[start : end + 1]
        longer_s = np.maximum(sums[1:-1] - sums[0], sums[-1] - sums[1:-1])
        inner = int((longer_s + order.cut_s[start + 1 : end]).argmin())
        insort(places, start + 1 + inner)
    return np.array(places)


def _fewest_seconds(order: _Order, allowed: Integers, most_layers: int) -> Integers | None:
    """Cuts among `allowed` into at most so many layers, the longest merged layer being short."""
    low, high = 0.0, float(order.accelerator_s[-1])
    best = _greedy(order, allowed, high, most_layers)
    for _ in range(_HALVINGS if best is not None else 0):
        middle = (low + high) / 2
        cuts = _greedy(order, allowed, middle, most_layers)
        if cuts is None:
            low = middle
        else:
            best, high = cuts, middle
    return best


def _greedy(
    order: _Order, allowed: Integers, longest_s: float, most_layers: int
) -> Integers | None:
    """Layers of one group, or of as many as fit into `longest_s`; None: they are too many."""
    sums = order.accelerator_s[allowed]
    cuts, place = [0], 0
    while place < len(allowed) - 1:
        fits = int(np.searchsorted(sums, sums[place] + longest_s, side="right")) - 1
        after = max(fits, place + 1)
        if after > fits and allowed[after] > allowed[place] + 1:
            return None
        place = after
        cuts.append(int(allowed[place]))
        if len(cuts) > most_layers + 1:
            return None
    return np.array(cuts)


def chain_profile(chain: LayerChain, bytes_per_s: float | None = None) -> ModelProfile:
    """The layers as a model profile; one "sample" is what the graph's seconds are for.

    Seconds become measurements of the device types `accelerator` and, where every node has them,
    `cpu`. What crosses a cut is the output of every forward node that a later layer reads.

    Args:
        chain: See `coarsen`.
        bytes_per_s: Turns communication seconds into bytes where the source knows no bytes.

    Raises:
        HeterpsError: Bytes are needed and `bytes_per_s` is not given.
    """
    graph = chain.graph
    nodes = graph.nodes
    sizes = [node.output_bytes for node in nodes]
    if not any(sizes) and any(node.communication_s for node in nodes):
        if bytes_per_s is None:
            raise HeterpsError(f"{graph.name}: has no output bytes; give bytes_per_s")
        sizes = [node.communication_s * bytes_per_s for node in nodes]
    layer_of = {node: layer for layer, members in enumerate(chain.layers) for node in members}
    last_reader = {index: layer_of[index] for index in range(len(nodes))}
    for producer, consumer in graph.edges:
        if not nodes[consumer].is_backward:
            last_reader[producer] = max(last_reader[producer], layer_of[consumer])
    crossing = np.zeros(len(chain.layers))
    for producer, reader in last_reader.items():
        if not nodes[producer].is_backward:
            crossing[layer_of[producer] : reader] += sizes[producer]
    layers = tuple(
        LayerProfile(
            name=f"{position}.{nodes[members[0]].name}",
            kind="operators",
            num_parameters=round(
                sum(nodes[member].parameter_bytes for member in members) / _BYTES_PER_PARAMETER
            ),
            forward_flops=0,
            backward_flops=0,
            activation_bytes=sum(sizes[m] for m in members if not nodes[m].is_backward),
            output_bytes=float(crossing[position]),
        )
        for position, members in enumerate(chain.layers)
    )
    return ModelProfile(
        name=graph.name,
        description=f"{len(layers)} layers of {len(nodes)} operators, {graph.source}",
        sample="what one pass of the source's times is for",
        layers=layers,
        measurements=_measurements(chain),
    )


def _measurements(chain: LayerChain) -> tuple[Measurement, ...]:
    """Seconds of the layers on the devices that every node runs on."""
    nodes = chain.graph.nodes
    columns = {}
    if all(node.supported_on_accelerator for node in nodes):
        columns["accelerator"] = [node.accelerator_s for node in nodes]
    cpu_s = [node.cpu_s for node in nodes if node.cpu_s is not None]
    if len(cpu_s) == len(nodes):
        columns["cpu"] = cpu_s

    def total(seconds: list[float], backward: bool) -> tuple[float, ...]:
        return tuple(
            sum(seconds[m] for m in members if nodes[m].is_backward == backward)
            for members in chain.layers
        )

    return tuple(
        Measurement(
            device_type=device_type,
            micro_batch_size=1,
            forward_s=total(seconds, backward=False),
            backward_s=total(seconds, backward=True),
        )
        for device_type, seconds in columns.items()
    )
