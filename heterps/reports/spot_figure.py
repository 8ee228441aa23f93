"""The replay of a spot trace as a picture: devices, committed samples, seconds lost by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heterps.reports.console import percent_text
from heterps.reports.spot_tables import SpotComparison
from heterps_envs.spot.costs import CAUSES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRATEGY_COLORS = ("#b5403a", "#c98a1b", "#2f6db3")
CAUSE_COLORS = ("#7a7a7a", "#b79ad6", "#b5403a", "#4f9d69", "#e0b04c", "#222222")


def spot_figure(found: SpotComparison, title: str) -> Figure:
    """Three panels on one page.

    Args:
        found: What the strategies made of a trace.
        title: Printed above.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7.2), layout="constrained")
    FigureCanvasAgg(figure)
    devices, samples, lost = figure.subplots(3, 1, height_ratios=(1, 2, 1.2))
    samples.sharex(devices)
    unit_s, unit = _unit(found.duration_s)
    _devices(devices, found, unit_s)
    _samples(samples, found, unit_s)
    samples.set_xlabel(unit)
    _lost(lost, found)
    for axes in (devices, samples, lost):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, lw=0.5)
    devices.set_title(f"{title}: a spot trace, simulated", loc="left", fontsize=10)
    return figure


def _unit(duration_s: float) -> tuple[float, str]:
    if duration_s >= 7200:
        return 3600.0, "hours"
    return (60.0, "minutes") if duration_s >= 300 else (1.0, "seconds")


def _devices(axes: Axes, found: SpotComparison, unit_s: float) -> None:
    moments = [moment for moment in found.moments if moment.time_s < found.duration_s]
    times = [*(moment.time_s / unit_s for moment in moments), found.duration_s / unit_s]
    counts = [len(moment.available) for moment in moments]
    axes.step(times, [*counts, counts[-1]], where="post", color="black", lw=1.2)
    axes.set_ylim(0, found.num_devices + 0.5)
    axes.set_ylabel("devices")
    axes.set_xlim(0, found.duration_s / unit_s)


def _samples(axes: Axes, found: SpotComparison, unit_s: float) -> None:
    """Committed samples less those of the ceiling's mean rate: else all lines look alike."""
    for result, color in zip(found.results, STRATEGY_COLORS, strict=True):
        points = result.history
        batch = result.samples_per_step
        behind = [
            (point.step * batch - found.ceiling_samples_per_s * point.time_s) for point in points
        ]
        times = [point.time_s / unit_s for point in points]
        share = f"{percent_text(found.share(result), 1)} of the ceiling"
        label = f"{result.strategy}: {result.goodput_samples_per_s:.4g} samples/s, {share}"
        axes.plot(times, behind, color=color, lw=1.3, label=label)
    axes.axhline(0, color="black", lw=0.6)
    axes.set_ylabel("samples ahead of\nthe ceiling's mean rate")
    axes.legend(frameon=False, fontsize=8, loc="lower left")


def _lost(axes: Axes, found: SpotComparison) -> None:
    names = [result.strategy for result in found.results]
    left = [0.0] * len(names)
    for cause, color in zip(CAUSES, CAUSE_COLORS, strict=True):
        seconds = [result.lost_s[cause] for result in found.results]
        axes.barh(names, seconds, left=left, color=color, label=cause, height=0.6)
        left = [a + b for a, b in zip(left, seconds, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("seconds lost")
    # Below the panel: inside it would lie on the longest bar.
    axes.legend(
        frameon=False, fontsize=8, ncols=len(CAUSES), loc="upper center", bbox_to_anchor=(0.5, -0.3)
    )
