"""Draws a graph on its devices: nodes in topological levels, edges, load and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats
from heterps_envs.environments.base.drawing import (
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

WIDTH, HEIGHT = 1000, 560
# A level of more nodes than these is drawn in columns beside each other.
_MOST_IN_LEVEL = 14
# Deeper graphs are folded: to the right, to the left below that, and so on.
_LONGEST_LINE = 24
# Pixels of the field of nodes; diameters of nodes in pixels, and the least that holds a number.
_FIELD = np.array([600.0, 430.0])
_LARGEST_NODE, _SMALLEST_NODE, _LEAST_NUMBERED = 32.0, 5.0, 15.0


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
    producers, consumers, devices = picture.producers, picture.consumers, picture.devices
    places = node_places(len(devices), producers, consumers)
    lines = edge_lines(places, producers, consumers)
    ends = devices[producers], devices[consumers]
    crosses = (ends[0] != ends[1]) & (ends[0] >= 0) & (ends[1] >= 0)
    for chosen, shade, width in ((~crosses, "#c4c4c4", 0.9), (crosses, "#404040", 1.1)):
        axes.add_collection(
            LineCollection(list(lines[chosen]), colors=shade, linewidths=width, zorder=1)
        )
    diameter = _node_diameter(places)
    size = (0.72 * diameter) ** 2  # points, squared
    colours = [colour(int(device)) if device >= 0 else NOT_PLACED for device in devices]
    axes.scatter(
        places[:, 0], places[:, 1], s=size, c=colours, edgecolors="white", linewidths=0.6, zorder=2
    )
    if picture.next_node >= 0:
        x, y = places[picture.next_node]
        axes.scatter(
            [x], [y], s=1.4 * size, facecolors="none", edgecolors=INK, linewidths=1.8, zorder=3
        )
    if diameter >= _LEAST_NUMBERED:
        for node, (x, y) in enumerate(places):
            axes.text(x, y, str(node), ha="center", va="center", fontsize=7, color=INK, zorder=4)
    axes.margins(0.04)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -1.5), max(high, 1.5))


def _node_diameter(places: Floats) -> float:
    """Pixels, so that neighbours do not touch."""
    spans = np.ptp(places, axis=0) + 1.0
    return float(np.clip(0.8 * min(_FIELD / spans), _SMALLEST_NODE, _LARGEST_NODE))


def edge_lines(
    places: Floats, producers: NDArray[np.integer], consumers: NDArray[np.integer]
) -> Floats:
    """(E, 13, 2) points of the edges; those that pass over nodes of their own line are arcs."""
    share = np.linspace(0.0, 1.0, 13)[None, :, None]
    first, last = places[producers][:, None], places[consumers][:, None]
    lines: Floats = first + share * (last - first)
    span = np.abs(last - first)[:, 0]
    # An edge to the next level needs no arc, nor one to another line of the fold.
    is_over = (span[:, 0] > 1.2) & (span[:, 1] < 0.6)
    lines[:, :, 1] += (is_over * np.minimum(0.1 * span[:, 0], 1.0))[:, None] * (
        4.0 * share * (1.0 - share)
    )[:, :, 0]
    return lines


def node_places(
    nodes: int, producers: NDArray[np.integer], consumers: NDArray[np.integer]
) -> Floats:
    """(V, 2) where nodes are drawn: levels from left to right, near to what they read.

    Args:
        nodes: V.
        producers: (E,) smaller ends of the edges.
        consumers: (E,) their larger ends.
    """
    levels, read = _levels(nodes, producers, consumers)
    places, starts, x = np.zeros((nodes, 2)), [], 0.0
    for members in levels:
        wished = {
            node: float(np.mean(places[read[node], 1])) if read[node] else 0.0 for node in members
        }
        members.sort(key=wished.__getitem__)
        columns = -(-len(members) // _MOST_IN_LEVEL)
        for index, node in enumerate(members):
            rank = (index + 0.5) / len(members) - 0.5
            # Columns of one level are close to each other.
            places[node] = x + 0.45 * (index % columns), min(len(members), _MOST_IN_LEVEL) * rank
        if len(members) == 1:
            places[members[0], 1] = wished[members[0]]
        starts.append(x)
        x += 1.0 + 0.45 * (columns - 1)
    return _folded(places, levels, starts, x)


def _levels(
    nodes: int, producers: NDArray[np.integer], consumers: NDArray[np.integer]
) -> tuple[list[list[int]], list[list[int]]]:
    """The nodes of each level (one behind the last one that they read), and what each reads."""
    level = [0] * nodes
    read: list[list[int]] = [[] for _ in range(nodes)]
    for index in np.argsort(consumers, kind="stable"):
        producer, consumer = int(producers[index]), int(consumers[index])
        level[consumer] = max(level[consumer], level[producer] + 1)
        read[consumer].append(producer)
    levels: list[list[int]] = [[] for _ in range(max(level) + 1)]
    for node, own in enumerate(level):
        levels[own].append(node)
    return levels, read


def _folded(places: Floats, levels: list[list[int]], starts: list[float], length: float) -> Floats:
    """The same in several lines, one below the other, every second one backwards."""
    lines = int(np.ceil(length / _LONGEST_LINE))
    if lines == 1:
        return places
    folded, width = places.copy(), length / lines
    height = float(np.ptp(places[:, 1])) + 2.0
    for members, start in zip(levels, starts, strict=True):
        line = int(start // width)
        along = places[members, 0] - line * width
        folded[members, 0] = along if line % 2 == 0 else width - 1.0 - along
        folded[members, 1] = places[members, 1] - line * height
    return folded
