"""Figures of plans, drawn from what was computed; no planner imports this."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heterps_configs.estimate import Estimate, TimelineEvent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from heterps.frontier import Frontier

# Blue and orange stay apart in every common colour blindness; grey carries what is not compute.
COLORS = {
    "forward": "#4477aa",
    "backward": "#ee7733",
    "reduce": "#228833",
    "step": "#aa3377",
}


def timeline_figure(estimate: Estimate, title: str) -> Figure:
    """Who computes what when: one row for each device, one bar for each action.

    Args:
        estimate: With its timeline.
        title: Printed above.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    devices = list(dict.fromkeys(event.device for event in estimate.timeline))
    figure = Figure(figsize=(11, 1.4 + 0.5 * len(devices)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for event in estimate.timeline:
        if event.action in COLORS and event.end_s > event.start_s:
            _draw(axes, event, devices.index(event.device), estimate.step_time_s)
    axes.set_yticks(range(len(devices)), devices)
    axes.invert_yaxis()
    axes.set_xlim(0, estimate.step_time_s)
    axes.set_xlabel("seconds from the start of the step")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    used = [name for name in COLORS if any(e.action == name for e in estimate.timeline)]
    from matplotlib.patches import Patch

    handles = [Patch(color=COLORS[name], label=name) for name in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(used), frameon=False)
    return figure


def _draw(axes: object, event: TimelineEvent, row: int, step_time_s: float) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    width = event.end_s - event.start_s
    color = COLORS[event.action]
    axes.barh(row, width, left=event.start_s, height=0.72, color=color, edgecolor="white", lw=0.5)
    # A number is legible only in a bar of about one per cent of the width or more.
    if event.micro_batch >= 0 and width > 0.012 * step_time_s:
        middle = event.start_s + width / 2
        axes.text(
            middle, row, str(event.micro_batch), ha="center", va="center", size=7, color="white"
        )


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
