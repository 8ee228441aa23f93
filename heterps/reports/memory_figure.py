"""The memory curve of every device: what it holds in the course of a step, against its limit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from heterps_configs.documents.estimate import Estimate, MemoryCurve

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# From the bottom up; what never changes lies below what does.
KINDS = {
    "parameters": "#bbbbbb",
    "optimizer": "#888888",
    "gradients": "#228833",
    "activations": "#4477aa",
    "buffers": "#ee7733",
}
LIMIT_COLOR = "#cc3311"
MOST_COLUMNS = 4
# A limit further above the peak than this would leave the curve flat; it is written instead.
DRAWN_LIMIT = 1.6
UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


def memory_figure(estimate: Estimate, title: str) -> Figure:
    """One small picture for each device, all with the same axes.

    Args:
        estimate: With its memory curves.
        title: Printed above.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    curves = estimate.memory_curves
    columns = min(MOST_COLUMNS, math.ceil(math.sqrt(len(curves))))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(max(2.9 * columns, 5.5), 1.3 + 1.75 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    top = max(estimate.memory_bytes[curve.device] for curve in curves)
    unit, size = next((entry for entry in UNITS if top >= entry[1]), UNITS[-1])
    for axes, curve in zip(grid, curves, strict=False):
        _draw(axes, curve, estimate, size)
    for axes in grid[len(curves) :]:
        axes.set_visible(False)
    grid[0].set_xlim(0, estimate.step_time_s)
    grid[0].set_ylim(0, 1.12 * top / size)
    for axes in grid[max(len(curves) - columns, 0) : len(curves)]:
        axes.set_xlabel("seconds", fontsize=8)
        axes.tick_params(labelbottom=True)
    for axes in grid[::columns]:
        axes.set_ylabel(unit, fontsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    handles: list[Artist] = [Patch(color=color, label=kind) for kind, color in KINDS.items()]
    if any(axes.lines for axes in grid):
        handles.append(Line2D([], [], color=LIMIT_COLOR, ls="--", lw=1, label="limit"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        handlelength=1.2,
        columnspacing=1.2,
    )
    return figure


def _draw(axes: Axes, curve: MemoryCurve, estimate: Estimate, size: int) -> None:
    seconds = np.append(curve.times_s, max(curve.times_s[-1], estimate.step_time_s))
    level = np.zeros(len(seconds))
    for kind, values in _stacked(curve).items():
        above = level + np.append(values, values[-1]) / size
        axes.fill_between(seconds, level, above, step="post", color=KINDS[kind], lw=0)
        level = above
    peak = estimate.memory_bytes[curve.device]
    limit = estimate.memory_limit_bytes.get(curve.device)
    note = f"{100 * peak / limit:.0f} % of its memory" if limit else ""
    axes.set_title(curve.device, loc="left", fontsize=8, pad=3)
    axes.set_title(note, loc="right", fontsize=7, pad=3, color="#555555")
    if limit and limit <= DRAWN_LIMIT * max(estimate.memory_bytes.values()):
        axes.axhline(limit / size, color=LIMIT_COLOR, lw=1, ls="--")
    axes.tick_params(labelsize=7)
    axes.locator_params(axis="x", nbins=4)
    axes.locator_params(axis="y", nbins=4)
    axes.spines[["top", "right"]].set_visible(False)


def _stacked(curve: MemoryCurve) -> dict[str, np.ndarray]:
    """Bytes of each kind at each time."""
    constant = np.ones(len(curve.times_s))
    return {
        "parameters": constant * curve.parameter_bytes,
        "optimizer": constant * curve.optimizer_bytes,
        "gradients": np.array(curve.gradient_bytes, float),
        "activations": np.array(curve.activation_bytes, float),
        "buffers": np.array(curve.buffer_bytes, float),
    }
