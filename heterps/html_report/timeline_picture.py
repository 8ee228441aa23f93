"""The timeline of a step as SVG: one row for each device, one path for each kind of action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterps.html_report.markup import Markup, joined, tag
from heterps.reports.console import seconds_text
from heterps.reports.figures import COLORS, LABELS
from heterps_configs.documents.estimate import TimelineEvent

WIDTH, ROW, BAR, LABEL = 1000, 24, 17, 170
# A row's text would run into the bars.
LONGEST_LABEL = 27
_BACKWARD = ("backward", "backward-input")


def timeline_picture(
    timeline: Sequence[TimelineEvent],
    step_time_s: float,
    again_share: Mapping[str, float],
    rows_first: Sequence[str] = (),
) -> Markup:
    """Who computes what when.

    Args:
        timeline: Of a step; actions of other devices are other rows.
        step_time_s: The width.
        again_share: For stages that compute layers again, the share of the backward pass.
        rows_first: Devices whose rows come first, in this order; others as they begin.
    """
    names = dict.fromkeys(event.device for event in timeline)
    ordered = dict.fromkeys([*(name for name in rows_first if name in names), *names])
    rows = {name: row for row, name in enumerate(ordered)}
    if not rows or step_time_s <= 0:
        return Markup("")
    scale = (WIDTH - LABEL) / step_time_s
    bars: dict[tuple[str, int], list[str]] = {}
    for event in timeline:
        length_s = event.end_s - event.start_s
        if event.action not in COLORS or length_s <= 0:
            continue
        row, start_s = rows[event.device], event.start_s
        again_s = length_s * again_share.get(event.stage, 0.0) * (event.action in _BACKWARD)
        if again_s > 0:
            bars.setdefault(("recompute", row), []).append(_bar(row, start_s, again_s, scale))
        found = _bar(row, start_s + again_s, length_s - again_s, scale, event.action == "reduce")
        bars.setdefault((event.action, row), []).append(found)
    paths = [
        tag("path", d="".join(found), fill=COLORS[action])
        for (action, _), found in sorted(bars.items(), key=lambda entry: _layer(entry[0][0]))
    ]
    labels = [
        tag("text", _short(name), tag("title", name), x=0, y=row * ROW + BAR - 4)
        for name, row in rows.items()
    ]
    height = len(rows) * ROW + 16
    ends = [
        tag("text", "0", x=LABEL, y=height - 2),
        tag("text", seconds_text(step_time_s), x=WIDTH, y=height - 2, text_anchor="end"),
    ]
    picture = tag("svg", *labels, *paths, *ends, viewBox=f"0 0 {WIDTH} {height}", class_="timeline")
    used = [action for action in COLORS if any(action == kind for kind, _ in bars)]
    keys = [
        tag("span", tag("i", style=f"background:{COLORS[action]}"), LABELS.get(action, action))
        for action in used
    ]
    return joined([tag("div", picture, class_="scroll"), tag("div", *keys, class_="legend")])


def _bar(row: int, start_s: float, length_s: float, scale: float, is_low: bool = False) -> str:
    """A rectangle; sums of gradients are a strip at the foot of the row, for passes go on."""
    height = 4 if is_low else BAR
    top = row * ROW + BAR - height
    width = max(length_s * scale - 0.15, 0.05)
    return f"M{LABEL + start_s * scale:.2f} {top}h{width:.2f}v{height}h-{width:.2f}z"


def _layer(action: str) -> int:
    """What lies on top is drawn last."""
    return ("receive", "step").index(action) if action in ("receive", "step") else 2


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 2]}.."
