"""Figures of planners: how soon they find what they find, and the frontier of price and speed."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from heterps.planning.comparison import Comparison
from heterps.planning.curves import plan_cost
from heterps.reports.console import percent_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from heterps.planning.frontier import Frontier

# Apart in every common colour blindness (Paul Tol); lines beyond them are dashed.
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777")
STYLES = ("-", "--", ":", "-.")
# Above the best of all, in per cent: below this the axis is linear, so that 0 has a place.
LINEAR = 0.1
EARLIEST_S = 1e-4


def curves_figure(comparison: Comparison) -> Figure:
    """A step line for each planner, from its first find to its answer, and a dot for the plan.

    Where the simulator chooses, the dot may lie above the line: costs are those of the closed form.

    Args:
        comparison: At least one planner found something.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(10, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    curves = {name: points for name, points in comparison.curves.items() if points}
    least = min(points[-1].cost for points in curves.values())
    spent_s = {row.planner: row.planning_cpu_s for row in comparison.rows}
    names = sorted(curves, key=lambda name: (curves[name][-1].cost, spent_s[name]))
    for number, name in enumerate(names):
        points = curves[name]
        above = [100 * (point.cost / least - 1) if least > 0 else 0.0 for point in points]
        seconds = [max(point.cpu_seconds, EARLIEST_S) for point in points]
        color = COLORS[number % len(COLORS)]
        style = STYLES[number // len(COLORS) % len(STYLES)]
        answered = 100 * (plan_cost(comparison.results[name]) / least - 1) if least > 0 else 0.0
        label = f"{name} ({percent_text(answered / 100, 1, is_change=True)})"
        end_s = max(spent_s[name], seconds[-1])
        axes.step(
            [*seconds, end_s], [*above, above[-1]], style, where="post", color=color, lw=1.6,
            label=label,
        )  # fmt: skip
        axes.plot(end_s, answered, "o", color=color, ms=4.5)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LINEAR)
    highest = max(100 * (points[0].cost / least - 1) for points in curves.values()) if least else 0
    axes.set_ylim(-0.2 * LINEAR, max(2 * highest, 10 * LINEAR))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    # Planners may all be within one decade.
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds_text(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("processor time of the planner; dot: the plan that it answers with")
    axes.set_ylabel("above the best of all planners")
    problem = comparison.problem
    axes.set_title(
        f"{problem.profile.name} on {problem.cluster.name}: best cost so far, by the closed form",
        loc="left",
        fontsize=10,
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.5)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def throughput_figure(comparison: Comparison) -> Figure:
    """A bar for each planner that found a plan, the fastest on top; why the others found none.

    Args:
        comparison: At least one planner found something.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = sorted(comparison.rows, key=lambda row: row.throughput_samples_per_s or 0.0)
    figure = Figure(figsize=(10, 1.2 + 0.28 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    speeds = [row.throughput_samples_per_s or 0.0 for row in rows]
    places = range(len(rows))
    axes.barh(places, speeds, color=COLORS[0], height=0.7)
    for place, row, speed in zip(places, rows, speeds, strict=True):
        gap = "" if row.gap is None else f"  gap {percent_text(row.gap, 2)}"
        said = (
            f"{speed:.5g}{gap}"
            if row.throughput_samples_per_s
            else textwrap.shorten(row.reason, 80, placeholder=" ...")
        )
        axes.text(speed, place, f" {said}", va="center", size=8)
    axes.set_yticks(places, [row.planner for row in rows], size=9)
    axes.set_xlim(0, 1.25 * max(speeds))
    axes.set_xlabel("samples per second, simulated")
    problem = comparison.problem
    title = f"{problem.profile.name} on {problem.cluster.name}: the plan of each planner"
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def frontier_figure(frontier: Frontier) -> Figure:
    """Price against throughput: a step line, since between two plans there is none.

    Args:
        frontier: At least one plan, the fastest first.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A row of text for each plan beside the axes: however near points lie, no labels meet.
    height = max(4.5, 1.2 + 0.2 * len(frontier.plans))
    figure = Figure(figsize=(10, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes, names = figure.subplots(1, 2, width_ratios=(2.2, 1))
    throughput = [entry.throughput_samples_per_s for entry in frontier.plans]
    price = [entry.price_usd_per_million_samples for entry in frontier.plans]
    axes.step(throughput, price, where="post", color=COLORS[0], lw=1.2)
    axes.plot(throughput, price, "o", color=COLORS[0], ms=4)
    _label_plans(names, axes, frontier)
    axes.margins(0.08, 0.12)
    axes.set_xlabel("samples per second (closed form)")
    axes.set_ylabel("USD per million samples")
    problem = frontier.problem
    title = f"{problem.profile.name} on {problem.cluster.name}: no plan is faster and cheaper"
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, lw=0.5)
    return figure


def _label_plans(names: Axes, axes: Axes, frontier: Frontier) -> None:
    """The devices of each plan in a column, the dearest on top, and a line to its point."""
    from matplotlib.patches import ConnectionPatch

    names.set_axis_off()
    axes.patch.set_visible(False)  # lines to points lie under all else
    by_price = sorted(frontier.plans, key=lambda entry: -entry.price_usd_per_million_samples)
    for row, entry in enumerate(by_price):
        y = 1 - (row + 0.5) / len(by_price)
        devices = ", ".join(f"{count} {name}" for name, count in entry.devices.items())
        names.text(0.02, y, devices, va="center", size=8, transform=names.transAxes)
        line = ConnectionPatch(
            (entry.throughput_samples_per_s, entry.price_usd_per_million_samples),
            (0.01, y),
            axes.transData,
            names.transAxes,
            color="#aaaaaa",
            lw=0.6,
            zorder=0,
        )
        line.set_in_layout(False)
        axes.figure.add_artist(line)
