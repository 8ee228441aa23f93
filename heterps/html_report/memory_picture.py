"""Memory over a step: one small chart for each device, stacked by kind, with its limit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from heterps.html_report.markup import Markup, joined, tag
from heterps.reports.memory_figure import DRAWN_LIMIT, KINDS, LIMIT_COLOR
from heterps_configs.documents.estimate import Estimate, MemoryCurve
from heterps_configs.units import bytes_text

WIDTH, HEIGHT = 300, 90


def memory_picture(estimate: Estimate, measured_bytes: Mapping[str, int] | None = None) -> Markup:
    """All devices that have a curve, on one scale.

    Args:
        estimate: With memory curves.
        measured_bytes: Peaks of a run, by device.
    """
    curves = estimate.memory_curves
    if not curves:
        return Markup("")
    top = max(max(estimate.memory_bytes[curve.device] for curve in curves), 1)
    limits = [estimate.memory_limit_bytes.get(curve.device, 0) for curve in curves]
    near = [limit for limit in limits if limit <= DRAWN_LIMIT * top]
    top = max([top, *near])
    boxes = [
        _box(curve, estimate, top, (measured_bytes or {}).get(curve.device)) for curve in curves
    ]
    keys = [tag("span", tag("i", style=f"background:{c}"), kind) for kind, c in KINDS.items()]
    keys.append(tag("span", tag("i", style=f"background:{LIMIT_COLOR}"), "limit"))
    return joined([tag("div", *boxes, class_="curves"), tag("div", *keys, class_="legend")])


def _box(curve: MemoryCurve, estimate: Estimate, top: float, measured: int | None) -> Markup:
    peak, limit = estimate.memory_bytes[curve.device], estimate.memory_limit_bytes.get(curve.device)
    words = f"{bytes_text(peak)} of {bytes_text(limit)}" if limit else bytes_text(peak)
    if measured is not None:
        words += f"; measured {bytes_text(measured)}"
    areas = _areas(curve, max(estimate.step_time_s, curve.times_s[-1], 1e-12), top)
    line = None
    if limit is not None and limit <= top:
        y = HEIGHT * (1 - limit / top)
        line = tag("line", x1=0, x2=WIDTH, y1=y, y2=y, stroke=LIMIT_COLOR, stroke_dasharray="5 4")
    picture = tag(
        "svg", *areas, line, viewBox=f"0 -2 {WIDTH} {HEIGHT + 2}", preserveAspectRatio="none"
    )
    return tag("div", tag("b", curve.device), tag("small", words), picture, class_="curve")


def _areas(curve: MemoryCurve, step_time_s: float, top: float) -> list[Markup]:
    """From the lowest kind up: each as a path from its lower edge to its upper one."""
    count = len(curve.times_s)
    values = {
        "parameters": (curve.parameter_bytes,) * count,
        "optimizer": (curve.optimizer_bytes,) * count,
        "gradients": curve.gradient_bytes,
        "activations": curve.activation_bytes,
        "buffers": curve.buffer_bytes,
    }
    x = [WIDTH * time_s / step_time_s for time_s in curve.times_s]
    sums = list(accumulate(values.values(), lambda a, b: tuple(map(sum, zip(a, b, strict=True)))))
    drawn = []
    # The tallest first: each later one covers its part of it.
    for kind, level in reversed(list(zip(values, sums, strict=True))):
        words = [f"M0 {HEIGHT}"]
        for right, value in zip(x, level, strict=True):
            words.append(f"H{right:.1f}V{HEIGHT * (1 - value / top):.1f}")
        words.append(f"H{WIDTH}V{HEIGHT}z")
        drawn.append(tag("path", d="".join(words), fill=KINDS[kind]))
    return drawn
