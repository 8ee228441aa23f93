"""`heterps report`: one file about a plan, a run or a comparison that loads nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps.comparisons.folder import TABLE_FILES
from heterps_configs.documents.plan import Plan
from heterps_configs.library import load_cluster
from tests.heterps.html_report.test_markup import Reader
from tests.heterps.small_profiles import PLAIN

Heterps = Callable[..., Any]
# Void elements, and what a page is made of; no script, no frame, no image from elsewhere.
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "section", "p", "div", "span",
    "b", "small", "i", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "svg", "path",
    "line", "text", "circle",
}  # fmt: skip


def checked(path: Path) -> Reader:
    """The page, which names no address and loads nothing."""
    html = path.read_text(encoding="utf-8")
    assert not re.search(r"https?:|url\(|@import|src=|href=", html)
    found = Reader(html)
    assert set(found.tags) <= ALLOWED
    return found


@pytest.fixture
def plan(heterps: Heterps, blocks: Path, tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    outcome = heterps("place", blocks, "-c", "local-emulated", "-p", "exact", "-o", path, *PLAIN)
    assert outcome.code == 0, outcome.err
    return path


def test_a_plan_is_shown_with_what_would_help(heterps: Heterps, plan: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = heterps("report", plan, "-o", page)
    assert outcome.code == 0, outcome.err
    words = checked(page).words
    for title in ("Where each stage is", "Why", "One step", "Memory", "What would help most"):
        assert title in words
    assert "blocks on local-emulated" in words
    assert "sets the pace" in words


def test_a_bound_of_other_times_than_are_shown_is_not_shown(
    heterps: Heterps, plan: Path, tmp_path: Path
) -> None:
    page, made = tmp_path / "page.html", Plan.from_file(plan)
    assert heterps("report", plan, "-o", page).code == 0
    assert re.search(r"best planwithin [\d.]+ % of a bound of all plans", checked(page).words)
    assert made.predicted_step_time_s is not None
    # As of a run that has learned that its devices are slower.
    made.changed(predicted_step_time_s=1.5 * made.predicted_step_time_s).to_file(plan)
    assert heterps("report", plan, "-o", page).code == 0
    words = checked(page).words
    assert "unknownfrom the best plandistance to the optimum unknown" in words
    assert "When the plan was made, " in words


def test_memory_is_beside_what_plans_may_use_everywhere(heterps: Heterps, tmp_path: Path) -> None:
    plan, page = tmp_path / "plan.yaml", tmp_path / "page.html"
    placed = heterps("place", "gpt2", "-c", "a100-v100", "-p", "greedy", "-o", plan, *PLAIN)
    assert heterps("report", plan, "-o", page).code == 0
    limits, shown = (
        set(re.findall(r"GiB of ([\d.]+) GiB", text)) for text in (checked(page).words, placed.out)
    )
    assert limits == shown != set()


def test_names_of_a_document_are_text(heterps: Heterps, blocks: Path, tmp_path: Path) -> None:
    cluster = load_cluster("local-emulated")
    node = cluster.nodes[0].changed(name="<script>alert(1)</script>")
    cluster.changed(nodes=(node,)).to_file(tmp_path / "cluster.yaml")
    plan, page = tmp_path / "plan.yaml", tmp_path / "page.html"
    heterps("place", blocks, "-c", tmp_path / "cluster.yaml", "-p", "greedy", "-o", plan, *PLAIN)
    outcome = heterps("report", plan, "-o", page)
    assert outcome.code == 0, outcome.err
    assert "<script>alert(1)</script>" in checked(page).words


def test_a_comparison_is_shown_with_its_curves(
    heterps: Heterps, blocks: Path, tmp_path: Path
) -> None:
    compared = heterps(
        "compare", blocks, "-c", "local-emulated", "--no-tensorboard", "--json",
        "--planner", "exact,greedy,even", "--evaluations", 500, *PLAIN,
    )  # fmt: skip
    assert compared.code == 0, compared.err
    path, page, folder = (tmp_path / name for name in ("compared.json", "page.html", "folder"))
    path.write_text(json.dumps(compared.data))
    folder.mkdir()
    (folder / TABLE_FILES[0]).write_text(json.dumps(compared.data))
    for source in (path, folder):
        assert heterps("report", source, "-o", page).code == 0
        words = checked(page).words
        for name in ("exact", "greedy", "even", "Best found over time"):
            assert name in words


@pytest.mark.slow
def test_a_run_is_shown_beside_what_was_predicted(heterps: Heterps, tmp_path: Path) -> None:
    plan, run, page = (tmp_path / name for name in ("plan.yaml", "run", "page.html"))
    heterps("place", "perceptron", "-c", "local-emulated", "--global-batch", 4, "-o", plan, *PLAIN)
    outcome = heterps("run", plan, "--steps", 3, "--run-directory", run)
    assert outcome.code == 0, outcome.err
    assert heterps("report", run, "-o", page).code == 0
    words = checked(page).words
    for title in ("Step time", "Loss", "A step as measured", "The same step as predicted"):
        assert title in words
    assert "stagedevicestypelayersmemorycarried out" in words
    assert "123step" in words, "marks of the axis of steps, which count from 1"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("nothing.yaml", None, "nothing.yaml: no such file"),
        ("folder", "", "holds no run-result.json"),
        ("training", "", "is the folder of a training, which has no page; TensorBoard shows it"),
        ("broken.json", '{"rows": 1}', "broken.json"),
        ("lacking.json", '{"rows": [{}], "bound_is_proven": 1}', "rows.0.planner: is missing"),
    ],
)
def test_what_is_no_source_is_refused_in_one_line(
    heterps: Heterps, tmp_path: Path, name: str, content: str | None, expected: str
) -> None:
    source, page = tmp_path / name, tmp_path / "page.html"
    if name in ("folder", "training"):
        source.mkdir()
        if name == "training":
            (source / "checkpoint.pt").touch()
    elif content is not None:
        source.write_text(content)
    outcome = heterps("report", source, "-o", page)
    assert outcome.code == 2
    assert expected in outcome.err
    assert not page.exists()


def test_where_a_model_has_moved_to_says_nothing_of_a_comparison(
    heterps: Heterps, tmp_path: Path
) -> None:
    source = tmp_path / "compared.json"
    content = {"model": "m", "cluster": "c", "job": {}, "rows": []}
    source.write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="--model is ignored"):
        outcome = heterps("report", source, "-o", tmp_path / "page.html", "--model", "nope")
    assert outcome.code == 0, outcome.err
    source.write_text("[" * 20_000)
    outcome = heterps("report", source, "-o", tmp_path / "page.html")
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
