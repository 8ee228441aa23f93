"""What the tables of the field say of rows."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.field.scores import (
    auto_summary,
    beaten_rows,
    family_rows,
    percentile,
    planner_row,
    with_scores,
)

Row = dict[str, Any]


def row(problem: str, planner: str, step_s: float | None, **others: Any) -> Row:
    given = {
        "problem": problem, "family": problem[0], "what": "a model", "planner": planner,
        "step_time_s": step_s, "reason": "", "cpu_s": 1.0, "predicted_s": None, "bound_s": None,
        "is_bounded": True,
    }  # fmt: skip
    return {**given, **others}


ROWS = with_scores(
    [
        row("a0", "auto", 2.0, cpu_s=0.5, bound_s=1.6, predicted_s=1.0),
        row("a0", "paper", 4.0, bound_s=1.0, predicted_s=6.0),
        row("a1", "auto", 3.0, cpu_s=4.0, bound_s=3.0),
        row("a1", "paper", 3.0 * (1 - 5e-10), cpu_s=3.0),
        row("b0", "auto", 1.1, bound_s=0.5),
        row("b0", "paper", 1.0, is_bounded=False),
        row("b1", "auto", 1.0005, bound_s=0.5),
        row("b1", "paper", 1.0),
        row("b2", "auto", 1.0),
        row("b2", "paper", None, reason="needs equal devices; the cluster has 2 of one"),
    ]
)


def test_steps_are_over_the_best_and_over_the_largest_bound_of_a_problem() -> None:
    by_key = {(each["problem"], each["planner"]): each for each in ROWS}
    paper = by_key["a0", "paper"]
    assert (paper["over_best"], paper["gap"]) == (2.0, pytest.approx(1.5))
    assert paper["predicted_over_simulated"] == 1.5
    # What the bound is not about has no gap; what has no plan has no score.
    assert by_key["b0", "paper"]["gap"] is None
    assert by_key["b2", "paper"]["over_best"] is None


def test_a_planners_row_is_about_what_it_answered_and_says_how_often_it_did_not() -> None:
    found = planner_row("paper", [each for each in ROWS if each["planner"] == "paper"])
    assert found["over_best_median"] == pytest.approx(1)
    assert found["over_best_p95"] == 2.0
    assert found["best_or_equal"] == 3
    assert found["no_answer_share"] == pytest.approx(0.2)
    assert found["reasons"] == "1 x needs equal devices"
    assert (found["cpu_s_median"], found["cpu_s_max"]) == (1.0, 3.0)


def test_auto_is_beaten_where_any_other_step_is_shorter() -> None:
    found = auto_summary(ROWS)
    assert found["problems"] == 5
    # a1 is a sum in another order, b1 within 0.1 %, b0 neither.
    assert found["auto_at_or_below_all"] == 3
    assert found["auto_within_0.1_percent"] == 4
    assert found["auto_worst_over_best"] == pytest.approx(1.1)
    assert found["auto_proven"] == 1
    assert found["plans_below_a_bound"] == 0
    assert found["auto_no_slower_than_slowest_other"] == 4
    beaten = beaten_rows(ROWS)
    assert [each["problem"] for each in beaten] == ["b0", "b1"]
    assert beaten[0]["ahead"] == "paper"


def test_auto_without_a_plan_is_beaten_by_any_plan() -> None:
    rows = with_scores([row("a0", "auto", None), row("a0", "paper", 1.0)])
    assert auto_summary(rows)["auto_at_or_below_all"] == 0
    assert auto_summary(rows)["auto_worst_over_best"] == math.inf
    assert beaten_rows(rows)[0]["auto_over_best"] == math.inf


def test_a_plan_below_a_bound_is_counted() -> None:
    rows = with_scores([row("a0", "auto", 1.0, bound_s=1.1), row("a0", "paper", 1.2)])
    assert auto_summary(rows)["plans_below_a_bound"] == 1


def test_reasons_that_differ_in_numbers_alone_count_as_one() -> None:
    rows = [
        row("a0", "paper", None, reason="26 layers in 32 ways take 0.9 s and 1.26e+03 MB; wait"),
        row("a1", "paper", None, reason="34 layers in 8 ways take 1.5 s and 95.2 MB; wait"),
        row("a2", "paper", None, reason="llama: too large"),
        row("a3", "paper", None, reason="its plan does not fit here: memory: n0 needs 3 GiB"),
    ]
    assert planner_row("paper", with_scores(rows))["reasons"] == (
        "2 x n layers in n ways take n s and n MB; 1 x llama: too large; "
        "1 x its plan does not fit here"
    )


def test_families_say_of_how_many_problems_there_was_a_plan() -> None:
    table = family_rows(["auto", "paper"], ROWS)
    assert table[1] == {"planner": "paper", "a": "1.500", "b": "1.000 (2 of 3)"}


def test_the_95th_percentile_is_a_value_of_the_list() -> None:
    assert percentile(range(1, 21), 0.95) == 19
    assert percentile([3.0], 0.95) == 3.0
    assert math.isnan(percentile([], 0.95))
