"""The table of a comparison with systems of papers: published methods beside ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.table import Table

from heterps.comparisons.tables import cannot_place_lines, comparison_table, field_table
from heterps.planning.compare import compare
from heterps.planning.comparison import Comparison
from heterps.planning.problems import load_problem
from heterps.reports.console import answer

Heterps = Callable[..., Any]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    problem = load_problem("perceptron", "local-emulated", global_batch_size=8)
    return compare(problem, ["greedy", "pipeedge", "piper"], evaluations=50)


def test_rows_are_over_the_best_with_a_gap_and_the_own_error(comparison: Comparison) -> None:
    rows = {row.planner: row for row in comparison.rows}
    shortest_s = min(row.step_time_s for row in comparison.rows if row.step_time_s is not None)
    least_s = comparison.executable_step_time_s
    assert least_s is not None
    for name in ("greedy", "pipeedge"):
        row, result = rows[name], comparison.results[name]
        assert row.step_time_s is not None
        assert row.over_best == row.step_time_s / shortest_s
        # The bound holds for all that was left open, plans without options among them.
        assert row.gap == pytest.approx(row.step_time_s / least_s - 1)
        assert row.own_error is not None
        expected_s = result.own_prediction_s
        assert expected_s is not None
        assert row.own_error == pytest.approx(expected_s / row.step_time_s - 1)
    own_cost = comparison.results["pipeedge"].own_cost
    assert own_cost is not None
    rounds = comparison.results["pipeedge"].plan.job.num_micro_batches
    assert comparison.results["pipeedge"].own_prediction_s == own_cost.seconds * rounds
    assert (rows["piper"].over_best, rows["piper"].own_error) == (None, None)


def test_who_cannot_place_stands_under_the_others_and_says_why(comparison: Comparison) -> None:
    table = field_table(comparison, {})
    assert table.row_count == 2
    (line,) = cannot_place_lines(comparison)
    assert line.split()[:5] == ["piper", "cannot", "place:", "needs", "equal"]
    assert "piper" not in line.split("place:")[1]


def test_files_are_a_column_where_there_are_any(comparison: Comparison) -> None:
    table = field_table(comparison, {"greedy": "out/greedy.yaml"})
    assert table.columns[-1].header == "plan"
    assert "out/greedy.yaml" in list(table.columns[-1].cells)


@pytest.mark.parametrize("table_of", [field_table, comparison_table])
def test_a_long_folder_takes_no_room_from_figures(
    comparison: Comparison, table_of: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "_width", 80)
    files = {row.planner: f"{'folder/' * 10}{row.planner}.yaml" for row in comparison.rows}
    with answer.capture() as printed:
        answer.print(table_of(comparison, files))
    assert "…" not in printed.get()
    assert max(map(len, printed.get().splitlines())) <= 80


def test_field_asks_what_papers_published_beside_ours(
    heterps: Heterps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps.planning.compare.system_names", lambda: ("whale", "heterps-price"))
    monkeypatch.setattr("heterps.planning.compare.OURS", ("exact", "uniform-3d"))
    outcome = heterps(
        "compare", "perceptron", "-c", "local-emulated", "--planners", "field,greedy,whale",
        "--evaluations", 100, "--no-tensorboard", "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    rows = [row["planner"] for row in outcome.data["rows"]]
    assert rows == ["exact", "uniform-3d", "whale", "heterps-price", "greedy"]


def test_sizes_that_a_planner_gave_up_are_told(heterps: Heterps) -> None:
    asked = ("compare", "vit-large", "-c", "h100-pod", "--no-tensorboard", "-p", "exact")
    few, many = (heterps(*asked, "--evaluations", number).err for number in (10, 10_000_000))
    assert re.search(r"exact: micro-batches of [\d, ]+ may be better: the budget was spent", few)
    assert "may be better" not in many


@pytest.mark.parametrize(
    ("width", "last"), [(120, "planning"), (70, "to 1 %"), (44, "CPU")], ids=["120", "70", "44"]
)
def test_a_narrow_terminal_has_fewer_columns_and_no_figure_is_cut(
    comparison: Comparison, width: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "_width", width)
    with answer.capture() as printed:
        answer.print(comparison_table(comparison, {}))
    _, headings, *rows = printed.get().splitlines()
    assert headings.split("  ")[-1].strip() == last
    assert "…" not in printed.get()
    assert max(len(row) for row in rows) <= width
