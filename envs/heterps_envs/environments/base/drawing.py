"""Pictures of placements, for `render_mode="rgb_array"` of the environments.

This module holds what pictures of chains and of graphs share; matplotlib is imported when the first
one is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Image = NDArray[np.uint8]
RENDER_MODES = (None, "rgb_array")

# Eight colours that colour-blind people tell apart (Okabe and Ito), then eight paler ones.
COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7a5c3e"),
    *("#8fb8d8", "#f4cf85", "#86cdb9", "#e6bdd3", "#a9d8f2", "#eeb08a", "#d9d27a", "#bba995"),
)
NOT_PLACED, INK, LIMIT = "#e4e4e4", "#222222", "#c00000"
_DPI = 100


def check_render_mode(render_mode: str | None) -> None:
    """Refuses render modes that no environment has.

    Raises:
        HeterpsError: It is neither None nor "rgb_array", or matplotlib is not installed.
    """
    if render_mode not in RENDER_MODES:
        raise HeterpsError(f'there is no render mode {render_mode!r}; allowed: "rgb_array" or None')
    if render_mode is not None:
        new_figure(1, 1)


def new_figure(width: int, height: int) -> Figure:
    """An empty figure of so many pixels.

    Raises:
        HeterpsError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HeterpsError(
            'render_mode="rgb_array" draws with matplotlib, which is not installed: '
            "pip install matplotlib"
        ) from error
    figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
    FigureCanvasAgg(figure)
    return figure


def pixels(figure: Figure) -> Image:
    """The figure as (height, width, 3)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    assert isinstance(figure.canvas, FigureCanvasAgg)
    figure.canvas.draw()  # type: ignore[no-untyped-call]
    rgba = np.asarray(figure.canvas.buffer_rgba(), np.uint8)  # type: ignore[no-untyped-call]
    return np.ascontiguousarray(rgba[..., :3])


def colour(kind: int) -> str:
    """The colour of a device class or a device."""
    return COLOURS[kind % len(COLOURS)]


def plain_axes(axes: Axes, title: str) -> None:
    """No frame and no ticks, a small title at the left."""
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
    axes.set_title(title, loc="left", fontsize=9, color=INK)


def share_bars(
    axes: Axes, title: str, names: list[str], shares: list[float], notes: list[str]
) -> None:
    """Horizontal bars from 0 to 1, with a line at 1; longer ones are cut off and marked.

    Args:
        axes: Where.
        title: Above them.
        names: One for each bar, in the order of classes or devices.
        shares: Their lengths.
        notes: Beside them.
    """
    plain_axes(axes, title)
    for row, (name, share, note) in enumerate(zip(names, shares, notes, strict=True)):
        axes.barh(row, 1.0, 0.62, color=NOT_PLACED)
        axes.barh(row, min(share, 1.12), 0.62, color=colour(row))
        axes.text(-0.03, row, name, ha="right", va="center", fontsize=8, color=INK)
        is_over = share > 1 + 1e-9
        axes.text(
            1.16, row, note, ha="left", va="center", fontsize=8, color=LIMIT if is_over else INK
        )
    axes.axvline(1.0, color=LIMIT, linewidth=1)
    axes.set_xlim(0, 1.14)
    axes.set_ylim(max(len(names), 3) - 0.4, -0.6)


def seconds_text(seconds: float) -> str:
    """Seconds with a unit that suits them."""
    if not np.isfinite(seconds):
        return "none"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
