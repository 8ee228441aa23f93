"""The frontier as a picture: each plan is named, and no two names meet."""

from __future__ import annotations

from itertools import pairwise

import pytest

from heterps import frontier, load_problem
from heterps.reports.planner_figures import frontier_figure


@pytest.mark.slow
def test_every_plan_is_named_and_no_names_overlap() -> None:
    found = frontier(load_problem("gpt2", "a100-v100-t4"))
    figure = frontier_figure(found)
    figure.draw_without_rendering()
    texts = figure.axes[1].texts
    shown = [text.get_text() for text in texts]
    assert shown == [", ".join(f"{n} {name}" for name, n in p.devices.items()) for p in found.plans]
    boxes = [text.get_window_extent() for text in texts]
    assert all(above.y0 > below.y1 for above, below in pairwise(boxes))
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)
    assert len(figure.artists) == len(found.plans)
