"""Draws a graph on its devices: nodes in topological levels, edges, load and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.rendering import (
    INK,
    NOT_PLACED,
    Image,
    colour,
    new_figure,
    pixels,
    plain_axes,
    share_bars,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
WIDTH, HEIGHT = 1000, 560
# More nodes than these have no numbers.
_MOST_NUMBERED = 64
# A level of more nodes than these is drawn in columns beside each other.
_MOST_IN_LEVEL = 14
_LARGEST_NODE, _SMALLEST_NODE = 520.0, 30.0


class GraphPicture(NamedTuple):
    """What is drawn.

    Attributes:
        title: Above everything.
        producers, consumers: (E,) the two ends of each edge; every producer is smaller.
        devices: (V,) device of each node; -1 for none yet.
        next_node: The node to be placed next; -1 for none.
        busy_share: (D,) seconds of a device's passes over those that `busy_title` names.
        busy_title: Above these bars.
        memory_share: (D,) of each device's memory.
        note: Below everything.
    """

    title: str
    producers: NDArray[np.integer]
    consumers: NDArray[np.integer]
    devices: NDArray[np.integer]
    next_node: int
    busy_share: Floats
    busy_title: str
    memory_share: Floats
    note: str


def draw_graph(picture: GraphPicture) -> Image:
    """(HEIGHT, WIDTH, 3) uint8.

    Raises:
        HeterpsError: matplotlib is not installed.
    """
    figure = new_figure(WIDTH, HEIGHT)
    grid = figure.add_gridspec(
        2, 2, width_ratios=(3.4, 1), left=0.03, right=0.93, top=0.86, bottom=0.09, wspace=0.26,
        hspace=0.28,
    )  # fmt: skip
    figure.suptitle(picture.title, x=0.03, ha="left", fontsize=12, color=INK)
    figure.text(0.03, 0.025, picture.note, fontsize=9, color=INK)
    _draw_nodes(figure.add_subplot(grid[:, 0]), picture)
    names = [f"device {device}" for device in range(len(picture.busy_share))]
    for row, title, shares in (
        (0, picture.busy_title, picture.busy_share),
        (1, "memory", picture.memory_share),
    ):
        notes = [f"{share:.0%}" for share in shares]
        share_bars(figure.add_subplot(grid[row, 1]), title, names, shares.tolist(), notes)
    return pixels(figure)


def _draw_nodes(axes: Axes, picture: GraphPicture) -> None:
    from matplotlib.collections import LineCollection

    plain_axes(axes, "nodes by level; dark edges cross from one device to another")
    nodes, devices = len(picture.devices), picture.devices
    places = node_places(nodes, picture.producers, picture.consumers)
    ends = devices[picture.producers], devices[picture.consumers]
    crosses = (ends[0] != ends[1]) & (ends[0] >= 0) & (ends[1] >= 0)
    for chosen, shade, width in ((~crosses, "#c4c4c4", 0.8), (crosses, "#404040", 1.1)):
        lines = np.stack(
            [places[picture.producers[chosen]], places[picture.consumers[chosen]]], axis=1
        )
        axes.add_collection(LineCollection(list(lines), colors=shade, linewidths=width, zorder=1))
    size = float(np.clip(14000.0 / nodes, _SMALLEST_NODE, _LARGEST_NODE))
    colours = [colour(int(device)) if device >= 0 else NOT_PLACED for device in devices]
    axes.scatter(
        places[:, 0], places[:, 1], s=size, c=colours, edgecolors="white", linewidths=0.8, zorder=2
    )
    if picture.next_node >= 0:
        x, y = places[picture.next_node]
        axes.scatter(
            [x], [y], s=1.3 * size, facecolors="none", edgecolors=INK, linewidths=1.8, zorder=3
        )
    if nodes <= _MOST_NUMBERED:
        for node, (x, y) in enumerate(places):
            axes.text(x, y, str(node), ha="center", va="center", fontsize=7, color=INK, zorder=4)
    axes.margins(0.04)


def node_places(
    nodes: int, producers: NDArray[np.integer], consumers: NDArray[np.integer]
) -> Floats:
    """(V, 2) where nodes are drawn: levels from left to right, near to what they read.

    Args:
        nodes: V.
        producers: (E,) smaller ends of the edges.
        consumers: (E,) their larger ends.
    """
    level, read: list[int] = [0] * nodes, [[] for _ in range(nodes)]
    for producer, consumer in sorted(
        zip(producers.tolist(), consumers.tolist(), strict=True), key=lambda edge: edge[1]
    ):
        level[consumer] = max(level[consumer], level[producer] + 1)
        read[consumer].append(producer)
    places, x = np.zeros((nodes, 2)), 0.0
    for each in range(max(level, default=0) + 1):
        members = [node for node in range(nodes) if level[node] == each]
        wished = {
            node: float(np.mean(places[read[node], 1])) if read[node] else 0.0 for node in members
        }
        members.sort(key=lambda node: wished[node])
        columns = -(-len(members) // _MOST_IN_LEVEL)
        for index, node in enumerate(members):
            rank = (index + 0.5) / len(members) - 0.5
            # Columns of one level are close to each other.
            places[node] = x + 0.45 * (index % columns), min(len(members), _MOST_IN_LEVEL) * rank
        if len(members) == 1:
            places[members[0], 1] = wished[members[0]]
        x += 1.0 + 0.45 * (columns - 1)
    return places
