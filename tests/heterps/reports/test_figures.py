"""Timelines as figures: every kind of action, groups as one row, how stages are carried out."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import get_args

from matplotlib.figure import Figure

from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.reports.figures import COLORS, save_figure, timeline_figure
from heterps.reports.folding import folded_estimate, folded_title
from heterps.reports.ways import plan_ways_text
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import LayerRange
from heterps_envs.schedule.actions import ActionKind
from heterps_envs.simulator.simulate import estimate


def test_every_action_that_takes_a_device_has_a_color() -> None:
    assert set(get_args(ActionKind)) - {"send"} <= set(COLORS)


def test_a_group_is_one_row_and_the_title_says_how_stages_are_carried_out() -> None:
    strategy = Strategy(tensor_parallel=(2,), recompute="full")
    problem = load_problem("gpt2", "a100-v100", strategy=strategy)
    plan = place(problem, "even", budget=Budget(10)).plan
    ranges = sorted({(stage.first_layer, stage.last_layer) for stage in plan.stages})
    sharded = [LayerRange(first_layer=first, last_layer=last) for first, last in ranges[:1]]
    assert plan_ways_text(plan) == "tensor parallel 2, recompute"
    shown = estimate(problem, plan, with_timeline=True, with_memory=True)
    folded = folded_estimate(problem, plan, shown)
    figure = timeline_figure(folded, folded_title("gpt2", plan))
    axes = figure.axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) == len(plan.device_groups)
    assert all(label.endswith("(2 as one)") for label in labels)
    assert axes.get_title(loc="left") == "gpt2; tensor parallel 2, recompute, micro-batches of 1"
    layers = sharded[0].last_layer + 1
    text = plan_ways_text(plan.changed(sharded_state=tuple(sharded)))
    assert text.endswith(f"state sharded {layers} of 14 layers")


def test_names_that_no_font_can_draw_are_told_once_in_words(tmp_path: Path) -> None:
    figure = Figure()
    figure.suptitle("\ue000\ue001")  # of no alphabet: no font has them
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        save_figure(figure, tmp_path / "a.png")
    assert ["no font of this machine has all characters" in str(each.message) for each in raised]
    assert len(raised) <= 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.suptitle("T4")
        save_figure(figure, tmp_path / "a.png")
