"""Figures of plans, drawn from what was computed; no planner imports this."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from heterps.reports.console import percent_text, seconds_text
from heterps.reports.folding import folded_estimate, folded_title
from heterps.reports.messages import sums_beside_passes
from heterps.reports.ways import recompute_share
from heterps_configs.documents.estimate import Estimate, TimelineEvent
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.yaml_files import write_bytes
from heterps_envs.problem import Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Of Unicode; and how fonts are called that have such characters.
_FIRST_EAST_ASIAN = "\u2e80"
_EAST_ASIAN = re.compile(r"CJK|Han ?Sans|Gothic|Hei\b|Ming|Mincho|Droid Sans Fallback|Unifont")
# Blue and orange stay apart in every common colour blindness; grey carries what is not compute.
COLORS = {
    "forward": "#4477aa",
    "backward": "#ee7733",
    "recompute": "#ffd199",
    "backward-input": "#ee7733",
    "backward-weight": "#ccbb44",
    "reduce": "#228833",
    "gather": "#66ccee",
    "step": "#aa3377",
    "receive": "#e4e4e4",
}
# Colours on which white numbers are hard to read.
LIGHT = ("backward-weight",)
# How much white goes into the colours of a device's first, second and further stages.
PALER = (0.0, 0.35, 0.55, 0.7)
# What the legend calls them.
LABELS = {
    "recompute": "computed again",
    "receive": "waits for a message",
    "step": "optimizer",
    "gather": "gathers weights",
}
ROW_HEIGHT = 0.72
SUM_HEIGHT = 0.2
# A number is legible only in a bar of about one per cent of the width or more.
LEGIBLE_SHARE = 0.012
_DOTS_PER_INCH = 150


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

    figure = Figure(figsize=(11, 1.6 + 0.42 * len(_rows(estimate))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    rows = _rows(estimate)
    used = _draw(axes, estimate, rows, recompute_share or {})
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xlim(0, estimate.step_time_s)
    axes.set_xlabel("seconds from the start of the step")
    axes.set_title(title, loc="left", fontsize=10)
    _legend(figure, used)
    return figure


def plan_timeline_figure(problem: Problem, plan: Plan, estimate: Estimate, title: str) -> Figure:
    """The same of a plan: equal devices as one row where there are many, and how it is carried out.

    Args:
        problem: Of the plan.
        plan: What is shown.
        estimate: Of the plan, with its timeline.
        title: Printed above, with what the rows are.
    """
    folded = folded_estimate(problem, plan, estimate)
    return timeline_figure(folded, folded_title(title, plan), recompute_share(problem, plan))


def compared_timelines_figure(
    estimates: Mapping[str, Estimate],
    title: str,
    recompute_share: Mapping[str, float] | None = None,
) -> Figure:
    """The same step twice, one above the other on one axis of time.

    Args:
        estimates: By name, of one plan, with timelines; the first is what the others are compared
            with.
        title: Printed above, with the step times and the error of the first.
        recompute_share: For stages that compute layers again, the share of the backward pass.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names, (first, *others) = list(estimates), list(estimates.values())
    rows = _rows(first)
    height = 1.3 + len(estimates) * (0.45 + 0.36 * len(rows))
    figure = Figure(figsize=(10, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(estimates), 1, sharex=True, squeeze=False).ravel()
    used: set[str] = set()
    labels = _labels_with_stages(first)
    for axes, (name, estimate) in zip(grid, estimates.items(), strict=True):
        used |= _draw(axes, estimate, rows, recompute_share or {})
        axes.set_yticks(range(len(rows)), [labels[device] for device in rows])
        axes.axvline(estimate.step_time_s, color="black", lw=0.8)
        bubble = estimate.bubble_share
        note = "" if bubble is None else f", bubble {percent_text(bubble, 1)}"
        axes.set_title(
            f"{name}: {seconds_text(estimate.step_time_s)}{note}", loc="left", fontsize=9
        )
    grid[0].set_xlim(0, 1.005 * max(estimate.step_time_s for estimate in estimates.values()))
    grid[-1].set_xlabel("seconds from the start of the step")
    errors = [
        percent_text(first.step_time_s / other.step_time_s - 1, 1, is_change=True)
        for other in others
    ]
    figure.suptitle(
        f"{title}: {names[0]} {seconds_text(first.step_time_s)} a step, "
        + ", ".join(
            f"{name} {seconds_text(other.step_time_s)} ({error})"
            for name, other, error in zip(names[1:], others, errors, strict=True)
        ),
        x=0.01,
        ha="left",
        fontsize=10,
    )
    _legend(figure, used, pales=max(len(stages) for stages in _stages(first).values()) > 1)
    return figure


def _rows(estimate: Estimate) -> dict[str, int]:
    """The row of each device."""
    names = dict.fromkeys(event.device for event in estimate.timeline)
    return {name: row for row, name in enumerate(names)}


def _stages(estimate: Estimate) -> dict[str, list[str]]:
    """The stages of each device, in the order in which they begin."""
    found: dict[str, dict[str, None]] = {event.device: {} for event in estimate.timeline}
    for event in estimate.timeline:
        if event.action == "forward":
            found[event.device][event.stage] = None
    return {device: list(stages) for device, stages in found.items()}


def _labels_with_stages(estimate: Estimate) -> dict[str, str]:
    return {
        device: f"{device}: {', '.join(stages[:3])}{' ...' if len(stages) > 3 else ''}"
        for device, stages in _stages(estimate).items()
    }


def _draw(
    axes: Axes, estimate: Estimate, rows: Mapping[str, int], recompute_share: Mapping[str, float]
) -> set[str]:
    """The bars of one timeline; returns the kinds that there are."""
    spans, are_beside = _spans(estimate, recompute_share), sums_beside_passes(estimate.timeline)
    order = {
        (device, stage): number
        for device, stages in _stages(estimate).items()
        for number, stage in enumerate(stages)
    }
    for (device, action, stage), found in spans.items():
        is_wait = action == "receive"
        # Gradient sums go on beside backward passes: a strip at the foot of the row.
        height = SUM_HEIGHT if action == "reduce" and are_beside else ROW_HEIGHT
        axes.broken_barh(
            found,
            (rows[device] + ROW_HEIGHT / 2 - height, height),
            zorder=2 if height == SUM_HEIGHT else 1,
            facecolors=_paler(COLORS[action], 0 if is_wait else order.get((device, stage), 0)),
            edgecolor="none" if is_wait else "white",
            lw=_edge_width(estimate),
        )
    for event in estimate.timeline:
        is_pale = order.get((event.device, event.stage), 0) > 0
        is_back = event.action in ("backward", "backward-input")
        again = recompute_share.get(event.stage, 0.0) if is_back else 0.0
        _number(axes, event, rows[event.device], estimate.step_time_s, is_pale, again)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return {action for _, action, _ in spans}


def _paler(color: str, number: int) -> str:
    """The colour of a device's stage: the first full, further ones mixed with white."""
    white = PALER[min(number, len(PALER) - 1)]
    channels = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(value + (255 - value) * white):02x}" for value in channels)


def _legend(figure: Figure, used: Iterable[str], pales: bool = False) -> None:
    from matplotlib.patches import Patch

    shown = [name for name in COLORS if name in set(used)]
    handles = [Patch(color=COLORS[name], label=LABELS.get(name, name)) for name in shown]
    if pales:
        handles.append(
            Patch(color=_paler(COLORS["forward"], 1), label="paler: a device's further stages")
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)


def _spans(
    estimate: Estimate, recompute_share: Mapping[str, float]
) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
    """(start, length) of the bars by device, action and stage; sends take no device."""
    spans: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for event in estimate.timeline:
        length_s = event.end_s - event.start_s
        if event.action == "send" or length_s <= 0:
            continue
        again_s = 0.0
        if event.action in ("backward", "backward-input"):
            again_s = length_s * recompute_share.get(event.stage, 0.0)
        if again_s > 0:
            spans.setdefault((event.device, "recompute", event.stage), []).append(
                (event.start_s, again_s)
            )
        rest = event.start_s + again_s, length_s - again_s
        spans.setdefault((event.device, event.action, event.stage), []).append(rest)
    return spans


def _edge_width(estimate: Estimate) -> float:
    """White lines between bars, thinner where there are many."""
    rows = max(len({event.device for event in estimate.timeline}), 1)
    return min(0.6, 30 * rows / max(len(estimate.timeline), 1))


def _number(
    axes: Axes,
    event: TimelineEvent,
    row: int,
    step_time_s: float,
    is_pale: bool,
    again: float,
) -> None:
    """The micro-batch, where it can be read; behind the share that computes again."""
    width = (event.end_s - event.start_s) * (1 - again)
    if event.action not in COLORS or event.action == "receive" or event.micro_batch < 0:
        return
    if width > LEGIBLE_SHARE * step_time_s:
        middle = event.end_s - width / 2
        color = "black" if is_pale or event.action in LIGHT else "white"
        number = str(event.micro_batch)
        axes.text(middle, row, number, ha="center", va="center", size=7, color=color)


def save_figure(figure: Figure, path: Path) -> None:
    """Writes a figure in the format that the file's ending says, in one move.

    Raises:
        HeterpsError: The file cannot be written.
    """
    content = io.BytesIO()
    _use_fonts_for(figure)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        figure.savefig(content, format=path.suffix.removeprefix("."), dpi=_DOTS_PER_INCH)
    for each in raised:
        if not str(each.message).startswith("Glyph "):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if any(str(each.message).startswith("Glyph ") for each in raised):
        warnings.warn(
            f"{path}: no font of this machine has all characters of its names, which are drawn as "
            "boxes; install one that has them, such as Noto Sans CJK",
            stacklevel=2,
        )
    write_bytes(path, content.getvalue())


def _use_fonts_for(figure: Figure) -> None:
    """Where names have characters of East Asia, fonts of this machine that have them."""
    from matplotlib.font_manager import fontManager
    from matplotlib.text import Text

    texts = [each for each in figure.findobj(Text) if isinstance(each, Text)]
    if not any(character >= _FIRST_EAST_ASIAN for text in texts for character in text.get_text()):
        return
    fonts = sorted({each.name for each in fontManager.ttflist if _EAST_ASIAN.search(each.name)})
    for text in texts:
        text.set_fontfamily([*text.get_fontfamily(), *fonts])
