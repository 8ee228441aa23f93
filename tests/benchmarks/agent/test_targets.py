"""What is asked for is compared with the right line of the right table."""

from __future__ import annotations

import pytest

from benchmarks.agent.section import Row, SectionResult, TableRows
from benchmarks.agent.targets import HIGH, NORMAL, targets_table


def _line(method: str, budget: str = "", **numbers: float) -> Row:
    base = {"gap_median": 0.0, "gap_mean": 0.0, "gap_p95": 0.0, "optimal": 1.0, "infeasible": 0.0}
    return {"method": method, "budget": budget, **base, "cpu_ms": 4.0, **numbers}


def _targets(section: str, table: str, *rows: Row) -> dict[tuple[str, str], Row]:
    found = targets_table({section: SectionResult([TableRows(table, "", "", list(rows))], {})})
    assert found is not None
    return {(row["what"], row["must reach"].split()[0]): row for row in found.rows}


@pytest.mark.parametrize(("gap_mean", "met"), [(0.001, "yes"), (0.01, "no")])
def test_gaps_are_met_below_their_limit(gap_mean: float, met: str) -> None:
    rows = _targets("chains", "in-range", _line(NORMAL, gap_mean=gap_mean))
    assert rows["chains in range, beam 16 (effort normal)", "mean"]["met"] == met
    assert rows["chains in range, beam 16 (effort normal)", "p95"]["met"] == "yes"


def test_the_share_of_optima_is_met_above_its_limit() -> None:
    rows = _targets("chains", "in-range", _line(HIGH, optimal=0.98))
    assert rows["the same, beam 256 (effort high)", "optimal"]["met"] == "no"


def test_beyond_exact_the_best_search_at_equal_cpu_counts() -> None:
    rows = _targets(
        "chains",
        "beyond-exact",
        _line(HIGH, gap_median=0.01, gap_p95=0.02),
        _line("annealing", "CPU of effort high", gap_median=0.005, gap_p95=0.1),
        _line("genetic", "20,000 evaluations", gap_median=0.0, gap_p95=0.0),
    )
    what = "beyond exact, equal CPU, effort high"
    assert rows[what, "median"]["met"] == "no"
    assert "annealing" in rows[what, "median"]["must reach"]
    assert rows[what, "p95"]["met"] == "yes"


def test_without_searches_at_equal_cpu_nothing_is_said_about_them() -> None:
    rows = _targets("chains", "beyond-exact", _line(HIGH), _line("annealing", "2,000 evaluations"))
    assert [what for what, _ in rows] == ["beyond exact, effort high"]


def test_larger_graphs_need_half_of_annealings_gap() -> None:
    rows = _targets(
        "graphs",
        "larger",
        _line("policy + annealing, normal", gap_mean=0.012),
        _line("annealing", "CPU of normal", gap_mean=0.02),
    )
    assert [row["met"] for row in rows.values()] == ["yes", "no"]


def test_training_is_judged_by_its_worst_seed() -> None:
    runs = [
        {"seed": seed, "environment_share": 0.04, "cpu_s until a": first, "cpu_s until b": "never"}
        for seed, first in (("0", 20.0), ("1", 30.0), ("spread", "20 to 30"))
    ]
    rows = _targets("training", "runs", *runs)
    assert rows["training, worst seed: cpu s until a", "at"]["met"] == "no"
    assert rows["training, worst seed: cpu s until b", "at"]["measured"] == "never"
    assert rows["training, worst seed: environment share", "at"]["met"] == "yes"


def test_sections_without_any_of_it_have_no_targets() -> None:
    assert targets_table({"environments": SectionResult([], {})}) is None
