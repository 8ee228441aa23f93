"""Draws a chain of layers with its stages: classes, cuts, replicas, load and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.environments.base.drawing import (
    INK,
    LIMIT,
    NOT_PLACED,
    Image,
    colour,
    new_figure,
    pixels,
    plain_axes,
    seconds_text,
    share_bars,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 1000, 480
# More layers than these have no numbers in their boxes.
_MOST_NUMBERED = 40


class DrawnStage(NamedTuple):
    """One stage of a picture.

    Attributes:
        start, stop: Layers `start .. stop - 1`.
        kind: Its device class.
        replicas: 0 where they are not known yet.
        busy_s: Seconds that its busiest replica works, waits, reduces and updates.
        limit_s: The most that they may be; inf without a limit.
        memory_bytes: On one device.
    """

    start: int
    stop: int
    kind: int
    replicas: int
    busy_s: float
    limit_s: float
    memory_bytes: float


class ChainPicture(NamedTuple):
    """What is drawn.

    Attributes:
        title: Above everything.
        layer_values: (L,) what each layer costs; the height of its box.
        stages: Those that there are, front first.
        next_layer: The layer to be placed next; -1 for none.
        device_count: (T,).
        memory_bytes: (T,) of one device.
        lines_s: Horizontal lines in the panel of seconds, by name.
        note: Below everything.
    """

    title: str
    layer_values: NDArray[np.float64]
    stages: Sequence[DrawnStage]
    next_layer: int
    device_count: NDArray[np.int64]
    memory_bytes: NDArray[np.float64]
    lines_s: dict[str, float]
    note: str


def draw_chain(picture: ChainPicture) -> Image:
    """(HEIGHT, WIDTH, 3) uint8.

    Raises:
        HeterpsError: matplotlib is not installed.
    """
    figure = new_figure(WIDTH, HEIGHT)
    grid = figure.add_gridspec(
        2, 2, width_ratios=(2.6, 1), height_ratios=(1, 1.7), left=0.07, right=0.9, top=0.86,
        bottom=0.17, wspace=0.45, hspace=0.32,
    )  # fmt: skip
    figure.suptitle(picture.title, x=0.07, ha="left", fontsize=12, color=INK)
    figure.text(0.07, 0.025, picture.note, fontsize=9, color=INK)
    _draw_layers(figure.add_subplot(grid[0, 0]), picture)
    _draw_seconds(figure.add_subplot(grid[1, 0]), picture)
    _draw_classes(figure.add_subplot(grid[:, 1]), picture)
    return pixels(figure)


def _draw_layers(axes: Axes, picture: ChainPicture) -> None:
    """One box for each layer, as high as it is dear, in the colour of its class."""
    plain_axes(axes, "layers (height: cost of the layer)")
    values = picture.layer_values
    layers = len(values)
    heights = 0.25 + 0.75 * values / max(float(values.max()), 1e-30)
    colours = [NOT_PLACED] * layers
    for stage in picture.stages:
        colours[stage.start : stage.stop] = [colour(stage.kind)] * (stage.stop - stage.start)
    axes.bar(np.arange(layers) + 0.5, heights, 0.9, color=colours)
    if picture.next_layer >= 0:
        axes.bar(
            picture.next_layer + 0.5, heights[picture.next_layer], 0.9,
            fill=False, edgecolor=INK, linewidth=1.6, linestyle="--",
        )  # fmt: skip
    step = 1 if layers <= _MOST_NUMBERED else 10
    for layer in range(0, layers, step):
        axes.text(layer + 0.5, -0.03, str(layer), ha="center", va="top", fontsize=7, color=INK)
    cuts = {stage.start for stage in picture.stages}
    # Without replicas, the next layer may still go on with the last stage.
    cuts |= {stage.stop for stage in picture.stages if stage.replicas}
    for cut in cuts - {0, layers}:
        axes.plot((cut, cut), (0, 1.08), color=INK, linewidth=1.4)
    axes.set_xlim(0, layers)
    axes.set_ylim(-0.12, 1.1)


def _draw_seconds(axes: Axes, picture: ChainPicture) -> None:
    """One bar for each stage, as wide as its layers."""
    plain_axes(axes, "seconds of the busiest replica in a step; below: class, replicas")
    layers = len(picture.layer_values)
    tallest = max(
        [stage.busy_s for stage in picture.stages]
        + [stage.limit_s for stage in picture.stages if np.isfinite(stage.limit_s)]
        + [line for line in picture.lines_s.values() if np.isfinite(line)]
        + [1e-30]
    )
    for stage in picture.stages:
        _draw_stage(axes, stage, layers)
    _draw_lines(axes, picture.lines_s, layers, tallest)
    axes.set_xlim(0, layers)
    axes.set_ylim(0, 1.05 * tallest)


def _draw_lines(axes: Axes, lines_s: dict[str, float], layers: int, tallest: float) -> None:
    """Dotted lines, named at the right end; names keep their distance."""
    shown = {name: seconds for name, seconds in lines_s.items() if np.isfinite(seconds)}
    lowest = -np.inf
    for name, seconds in sorted(shown.items(), key=lambda line: line[1]):
        axes.axhline(seconds, color=INK, linewidth=1, linestyle=":")
        lowest = max(seconds, lowest + 0.17 * tallest)
        axes.text(
            1.01 * layers, lowest, f"{name}\n{seconds_text(seconds)}",
            ha="left", va="center", fontsize=8, color=INK,
        )  # fmt: skip


def _draw_stage(axes: Axes, stage: DrawnStage, layers: int) -> None:
    middle, width = (stage.start + stage.stop) / 2, stage.stop - stage.start
    is_known = stage.replicas > 0
    axes.bar(
        middle, stage.busy_s, width - 0.1, color=colour(stage.kind),
        alpha=1.0 if is_known else 0.45,
    )  # fmt: skip
    if np.isfinite(stage.limit_s):
        axes.plot(
            (stage.start + 0.05, stage.stop - 0.05), (stage.limit_s, stage.limit_s),
            color=LIMIT, linewidth=1.4, linestyle="--",
        )  # fmt: skip
    share = width / layers
    text = f"class {stage.kind}" if share > 0.1 else str(stage.kind)
    if is_known:
        text += f"\nx {stage.replicas}" if share > 0.045 else f"\n{stage.replicas}"
    axes.text(
        middle, -0.03, text, transform=axes.get_xaxis_transform(),
        ha="center", va="top", fontsize=8 if share > 0.03 else 6, color=INK,
    )  # fmt: skip


def _draw_classes(axes: Axes, picture: ChainPicture) -> None:
    """Memory of the fullest device of each class, and how many of its devices are used."""
    names, shares, notes = [], [], []
    for kind, count in enumerate(picture.device_count):
        own = [stage for stage in picture.stages if stage.kind == kind]
        used = sum(max(stage.replicas, 1) for stage in own)
        fullest = max((stage.memory_bytes for stage in own), default=0.0)
        share = fullest / picture.memory_bytes[kind] if picture.memory_bytes[kind] else 0.0
        names.append(f"class {kind}")
        shares.append(share)
        notes.append(f"{share:.0%}\n{used} of {count}")
    share_bars(axes, "memory of the fullest device;\ndevices used", names, shares, notes)
