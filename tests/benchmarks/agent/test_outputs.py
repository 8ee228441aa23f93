"""Tables as Markdown, JSON, figures and TensorBoard events."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.agent.outputs import markdown, shown, table_text
from benchmarks.agent.section import Row, SectionResult, TableRows
from benchmarks.agent.tensorboard_files import write_tensorboard


def _row(method: str, budget: str, gap: float, cpu_ms: float) -> Row:
    return {
        "method": method,
        "budget": budget,
        "problems": 2,
        "gap_median": gap,
        "gap_mean": gap,
        "gap_p95": math.inf,
        "optimal": 0.5,
        "infeasible": 1,
        "cpu_ms": cpu_ms,
    }


@pytest.fixture
def results() -> dict[str, SectionResult]:
    rows = [
        _row("policy, greedy", "", 0.01, 1.0),
        _row("policy, effort normal", "", 0.01, 1.0),
        _row("annealing", "256 evaluations", 0.1, 0.3),
        _row("annealing", "2,000 evaluations", 0.05, 2.0),
    ]
    table = TableRows("in-range", "chains: in-range", "Gaps are against the optimum.", rows)
    runs = TableRows("runs", "runs", "No methods.", [{"seed": "0", "gap_p95": 0.1, "cpu_ms": 1.0}])
    return {"chains": SectionResult([table, runs], {"x": math.nan})}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("gap_mean", 0.00321, "0.32%"),
        ("gap_p95", 1.5, "150.0%"),
        ("gap_p95", math.inf, "inf"),
        ("optimal", 1.0, "100%"),
        ("optimal", 0.9875, "98.8%"),
        ("cpu_ms", 4.5678, "4.57"),
        ("evaluations", 20000.0, "20,000"),
        ("infeasible", 0, "0"),
    ],
)
def test_cells_are_short(name: str, value: float, text: str) -> None:
    assert shown(name, value) == text


def test_numbers_stand_to_the_right() -> None:
    text = table_text([{"method": "a", "gap_mean": 0.1, "evaluations": 5}])
    assert text.splitlines() == ["| method | mean |", "| --- | ---: |", "| a | 10.0% |"]


def test_markdown_has_every_table_with_its_note(results: dict[str, SectionResult]) -> None:
    text = markdown(results)
    assert "## Chains\n\n### chains: in-range\n\nGaps are against the optimum.\n\n| method" in text
    assert text.count("\n| annealing |") == 2


def test_json_has_no_infinite_numbers(results: dict[str, SectionResult]) -> None:
    plain = results["chains"].plain()
    json.dumps(plain, allow_nan=False)
    assert plain["tables"][0]["rows"][0]["gap_p95"] is None


@pytest.mark.slow
def test_tensorboard_has_a_run_for_each_method(
    results: dict[str, SectionResult], tmp_path: Path
) -> None:
    for _ in range(2):  # the second time replaces the first
        write_tensorboard(tmp_path, "chains", results["chains"])
    folder = tmp_path / "curves" / "chains"
    curve = EventAccumulator(str(folder / "annealing")).Reload()
    points = curve.Scalars("chains in-range/gap_median")
    assert [(p.step, round(p.value, 2)) for p in points] == [(300, 0.1), (2000, 0.05)]
    assert "chains in-range/gap_p95" not in curve.Tags()["scalars"]  # infinite
    tables = EventAccumulator(str(folder / "tables")).Reload()
    assert tables.Tags()["images"] == ["chains/in-range"]
    assert (folder / "policy-efforts").is_dir()
    assert (tmp_path / "budgets" / "chains" / "annealing-256-evaluations").is_dir()
