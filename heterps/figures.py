"""Figures of plans, drawn from what was computed; no planner imports this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from heterps_configs.estimate import Estimate, TimelineEvent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from heterps.frontier import Frontier

# Blue and orange stay apart in every common colour blindness; grey carries what is not compute.
COLORS = {
    "forward": "#4477aa",
    "backward": "#ee7733",
    "recompute": "#ffd199",
    "backward-input": "#ee7733",
    "backward-weight": "#ccbb44",
    "reduce": "#228833",
    "step": "#aa3377",
    "receive": "#e4e4e4",
}
# Colours on which white numbers are hard to read.
LIGHT = ("backward-weight",)
# What the legend calls them.
LABELS = {"recompute": "computed again", "receive": "waits for a message", "step": "optimizer"}
ROW_HEIGHT = 0.72
# A number is legible only in a bar of about one per cent of the width or more.
LEGIBLE_SHARE = 0.012


def timeline_figure(
    estimate: Estimate, title: str, recompute_share: Mapping[str, float] | None = None
) -> Figure:
    """Who computes what when: one row for each device, one bar for each action.

    Args:
        estimate: With its timeline.
        title: Printed above.
        recompute_share: For stages that compute layers again, the share of the backward pass.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = {
        name: row for row, name in enumerate(dict.fromkeys(e.device for e in estimate.timeline))
    }
    figure = Figure(figsize=(11, 1.6 + 0.42 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    spans = _spans(estimate, recompute_share or {})
    for (device, action), found in spans.items():
        axes.broken_barh(
            found,
            (rows[device] - ROW_HEIGHT / 2, ROW_HEIGHT),
            facecolors=COLORS[action],
            edgecolor="none" if action == "receive" else "white",
            lw=_edge_width(estimate),
        )
    for event in estimate.timeline:
        _number(axes, event, rows[event.device], estimate.step_time_s)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, estimate.step_time_s)
    axes.set_xlabel("seconds from the start of the step")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    used = [name for name in COLORS if any(action == name for _, action in spans)]
    handles = [Patch(color=COLORS[name], label=LABELS.get(name, name)) for name in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(used), frameon=False)
    return figure


def _spans(
    estimate: Estimate, recompute_share: Mapping[str, float]
) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """(start, length) of all bars of one device and one colour; sends take no device."""
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for event in estimate.timeline:
        length_s = event.end_s - event.start_s
        if event.action == "send" or length_s <= 0:
            continue
        again_s = 0.0
        if event.action in ("backward", "backward-input"):
            again_s = length_s * recompute_share.get(event.stage, 0.0)
        if again_s > 0:
            spans.setdefault((event.device, "recompute"), []).append((event.start_s, again_s))
        rest = event.start_s + again_s, length_s - again_s
        spans.setdefault((event.device, event.action), []).append(rest)
    return spans


def _edge_width(estimate: Estimate) -> float:
    """White lines between bars, thinner where there are many."""
    rows = max(len({event.device for event in estimate.timeline}), 1)
    return min(0.6, 30 * rows / max(len(estimate.timeline), 1))


def _number(axes: Axes, event: TimelineEvent, row: int, step_time_s: float) -> None:
    """The micro-batch, where it can be read."""
    width = event.end_s - event.start_s
    if event.action not in COLORS or event.action == "receive" or event.micro_batch < 0:
        return
    if width > LEGIBLE_SHARE * step_time_s:
        middle = event.start_s + width / 2
        color = "black" if event.action in LIGHT else "white"
        number = str(event.micro_batch)
        axes.text(middle, row, number, ha="center", va="center", size=7, color=color)


def frontier_figure(frontier: Frontier) -> Figure:
    """Price against throughput: a step line, since between two plans there is none.

    Args:
        frontier: At least one plan, the fastest first.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    throughput = [entry.throughput_samples_per_s for entry in frontier.plans]
    price = [entry.price_usd_per_million_samples for entry in frontier.plans]
    axes.step(throughput, price, where="post", color=COLORS["forward"], lw=1.2)
    axes.plot(throughput, price, "o", color=COLORS["forward"], ms=4)
    ends = dict.fromkeys((0, len(throughput) - 1))
    for index, (side, align) in zip(ends, ((-1, "right"), (1, "left")), strict=False):
        devices = frontier.plans[index].devices
        axes.annotate(
            ", ".join(f"{count} {name}" for name, count in devices.items()),
            (throughput[index], price[index]),
            xytext=(8 * side, -6 * side - 4),
            textcoords="offset points",
            ha=align,
            size=8,
        )
    axes.margins(0.08, 0.12)
    axes.set_xlabel("samples per second (closed form)")
    axes.set_ylabel("USD per million samples")
    problem = frontier.problem
    title = f"{problem.profile.name} on {problem.cluster.name}: no plan is faster and cheaper"
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.5)
    return figure
