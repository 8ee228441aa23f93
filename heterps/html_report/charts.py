"""Line charts as SVG: few lines, one axis each way, readable on a phone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from heterps.html_report.colors import STAGES
from heterps.html_report.markup import Markup, joined, tag

WIDTH, HEIGHT = 640, 240
# On a phone, where all is smaller, letters are larger: "765.3 ms" needs 90 of these units.
LEFT, RIGHT, TOP, BOTTOM = 96, 8, 12, 34
# More points than pixels tell nothing.
MOST_POINTS = 600
# A line that is shorter cannot be seen; it is a dot.
SHORTEST = 2.0
_TICKS = 4


class Line(NamedTuple):
    """One line of a chart.

    Attributes:
        label: What it shows.
        x: Of its points, never falling.
        y: The same number.
        is_step: Each value holds until the next point.
        is_dashed: For what was predicted, and bounds.
        color: By default one of the page's.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    is_step: bool = False
    is_dashed: bool = False
    color: str = ""


def chart(
    lines: Sequence[Line],
    x_title: str,
    y_text: Callable[[float], str],
    x_text: Callable[[float], str] = "{:.4g}".format,
    *,
    begins_at_zero: bool = True,
) -> Markup:
    """All lines on one pair of axes, with a legend below.

    Args:
        lines: At least one with points.
        x_title: What the horizontal axis counts.
        y_text: How a value is written.
        x_text: The same of the horizontal axis.
        begins_at_zero: Of the vertical axis.
    """
    shown = [_thinned(line) for line in lines if len(line.x)]
    if not shown:
        return Markup("")
    numbers = [value for line in shown for value in line.x]
    low_x, high_x = _range(numbers)
    low, high = _range([v for line in shown for v in line.y if math.isfinite(v)])
    low = 0.0 if begins_at_zero else low

    def place(x: float, y: float) -> tuple[float, float]:
        right = LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        return right, HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    marks = []
    for index in range(_TICKS + 1):
        value = low + (high - low) * index / _TICKS
        _, y = place(low_x, value)
        marks.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
        marks.append(tag("text", y_text(value), x=LEFT - 6, y=y + 4, text_anchor="end"))
    # Powers of logarithms are off by a rounding.
    last_x = high_x - 1e-9 * (high_x - low_x)
    for along in _along(low_x, high_x, numbers):
        anchor = "end" if along >= last_x else "middle"
        x, _ = place(along, low)
        marks.append(tag("text", x_text(along), x=x, y=HEIGHT - 18, text_anchor=anchor))
    middle = (WIDTH + LEFT) / 2
    marks.append(tag("text", x_title, x=middle, y=HEIGHT - 3, text_anchor="middle"))
    paths = [_path(line, _color(line, index), place) for index, line in enumerate(shown)]
    keys = [
        tag("span", tag("i", style=f"background:{_color(line, index)}"), line.label)
        for index, line in enumerate(shown)
    ]
    picture = tag("svg", *marks, *paths, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="chart")
    return joined([picture, tag("div", *keys, class_="legend")])


def _along(low: float, high: float, numbers: Sequence[float]) -> list[float]:
    """Where the horizontal axis has its marks: of what is counted, at whole numbers alone."""
    even = [low + (high - low) * index / _TICKS for index in range(_TICKS + 1)]
    if not all(float(value).is_integer() for value in numbers):
        return even
    return sorted({float(round(value)) for value in even})


def _path(line: Line, color: str, place: Callable[[float, float], tuple[float, float]]) -> Markup:
    words, is_open, drawn = list[str](), False, list[tuple[float, float]]()
    for x, y in zip(line.x, line.y, strict=True):
        if not math.isfinite(y):
            is_open = False
            continue
        right, down = place(x, y)
        drawn.append((right, down))
        if is_open and line.is_step:
            words.append(f"H{right:.1f}V{down:.1f}")
        else:
            words.append(f"{'L' if is_open else 'M'}{right:.1f} {down:.1f}")
        is_open = True
    if drawn and all(math.dist(drawn[0], each) < SHORTEST for each in drawn):
        right, down = drawn[0]
        return tag("circle", cx=f"{right:.1f}", cy=f"{down:.1f}", r=4, fill=color)
    dashes = "5 4" if line.is_dashed else None
    return tag("path", d="".join(words), stroke=color, stroke_dasharray=dashes, class_="line")


def _color(line: Line, index: int) -> str:
    return line.color or STAGES[index % len(STAGES)]


def _thinned(line: Line) -> Line:
    stride = math.ceil(len(line.x) / MOST_POINTS)
    if stride == 1:
        return line
    chosen = sorted({*range(0, len(line.x), stride), len(line.x) - 1})
    return line._replace(x=[line.x[i] for i in chosen], y=[line.y[i] for i in chosen])


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From the least to the most; never empty."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))
