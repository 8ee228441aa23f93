"""The colours of stages: the same in every picture of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterps.reports.folding import StageGroup

# Apart in every common colour blindness (Tol, 2021, "muted" and "light"); they come again after.
STAGES = (
    "#332288", "#88ccee", "#117733", "#ddcc77", "#cc6677", "#aa4499", "#44aa99", "#999933",
    "#882255", "#77aadd", "#ee8866", "#bbcc33",
)  # fmt: skip
IDLE = "#f2f2f2"


def group_colors(groups: Sequence[StageGroup]) -> dict[str, str]:
    """By the group's label."""
    return {group.label: STAGES[index % len(STAGES)] for index, group in enumerate(groups)}


def device_colors(groups: Sequence[StageGroup]) -> Mapping[str, str]:
    """By the device's name: that of the first of its stages."""
    colors, found = group_colors(groups), dict[str, str]()
    for group in groups:
        for name in group.devices:
            found.setdefault(name, colors[group.label])
    return found
