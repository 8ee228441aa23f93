"""`heterps place`: plan, and say how good the plan is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heterps_agents.registry import planner_named

from heterps.console import answer, print_json, remarks
from heterps.placing import place
from heterps.problems import load_problem
from heterps_agents.planner import Budget


def run_place(
    model: str,
    cluster: str,
    planner: str,
    problem_options: dict[str, Any],
    *,
    evaluations: int | None,
    seconds: float | None,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Places, prints, and writes the plan file where one is asked for."""
    planner_named(planner)  # A misspelt planner should not wait for a model to be traced.
    problem = load_problem(model, cluster, **problem_options)
    result = place(problem, planner, budget=Budget(evaluations, seconds), seed=seed)
    if output is not None:
        result.plan.to_file(output)
        remarks.print(f"plan written to {output}")
    if as_json:
        print_json(result.to_mapping())
        return
    from heterps.tables import result_lines, stages_table

    answer.print(stages_table(result))
    for line in result_lines(result):
        answer.print(line)
