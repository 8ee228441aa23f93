"""Tables of training runs: what policies remember of theirs, and the spread over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.agent.section import TableRows
from benchmarks.agent.training import with_worst
from benchmarks.agent.training_runs import run_row, runs_table
from heterps_agents.training.milestones import MILESTONES

FIRST, SECOND = MILESTONES


def _meta(seed: int, cpu_s: float, **milestones: float) -> dict[str, Any]:
    reached = {name: {"steps": 1, "cpu_s": value} for name, value in milestones.items()}
    return {"seed": seed, "steps": 1000, "cpu_s": cpu_s, "milestones": reached}


def test_a_goal_that_was_not_reached_says_so(tmp_path: Path) -> None:
    row = run_row(_meta(0, 10.0, **{FIRST: 4.0}), tmp_path)
    assert row["steps_per_cpu_s"] == 100
    assert row[f"cpu_s until {FIRST}"] == 4.0
    assert row[f"cpu_s until {SECOND}"] == "never"


def test_policies_that_remember_nothing_have_empty_cells(tmp_path: Path) -> None:
    row = run_row({"seed": 3}, tmp_path)
    assert row.pop("seed") == "3"
    assert set(row.values()) == {""}


def test_the_spread_is_below_the_runs(tmp_path: Path) -> None:
    rows = [
        run_row(_meta(seed, cpu_s, **{FIRST: cpu_s}), tmp_path)
        for seed, cpu_s in ((0, 8.0), (1, 9.5))
    ]
    spread = runs_table("Two.", rows).rows[-1]
    assert spread["seed"] == "spread"
    assert spread["cpu_s"] == "8 to 9.5"
    assert spread[f"cpu_s until {SECOND}"] == "never"


def test_the_worst_seed_stands_below_each_decoding() -> None:
    def row(method: str, gap: float, optimal: float) -> dict[str, Any]:
        numbers = dict.fromkeys(("gap_median", "gap_mean", "gap_p95", "infeasible", "cpu_ms"), gap)
        return {"method": method, "budget": "", "optimal": optimal, **numbers}

    rows = [
        row("exact", 0.0, 1.0),
        row("policy, greedy, seed 0", 0.1, 0.8),
        row("policy, greedy, seed 1", 0.3, 0.9),
    ]
    table = with_worst(TableRows("in-range", "", "", rows), ["seed 0", "seed 1"])
    worst = table.rows[-1]
    assert worst["method"] == "policy, greedy, worst of 2"
    assert (worst["gap_p95"], worst["optimal"]) == (0.3, 0.8)
