"""A throughput floor that a plan keeps, as simulated, does not rule it out."""

from __future__ import annotations

from typing import Any

import pytest

from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem

BUDGET = 300


def problem(**job: Any) -> Problem:
    return load_problem(
        "gpt2",
        "a100-v100-t4",
        strategy=Strategy(),
        global_batch_size=32,
        **{"micro_batch_size": 1, **job},
    )


@pytest.mark.parametrize("planner", ["greedy", "annealing"])
@pytest.mark.parametrize("objective", ["throughput", "price"])
def test_what_is_found_without_a_floor_is_found_above_one_that_it_keeps(
    planner: str, objective: str
) -> None:
    free = place(problem(micro_batch_size=4), planner, budget=Budget(BUDGET))
    shown = free.estimate
    closed_s = shown.closed_form_step_time_s
    assert closed_s is not None
    assert closed_s > shown.step_time_s  # the closed form alone misses such a floor
    floor = 0.99 * shown.throughput_samples_per_s
    asked = problem(micro_batch_size=4, objective=objective, min_throughput_samples_per_s=floor)
    found = place(asked, planner, budget=Budget(BUDGET))
    assert found.estimate.throughput_samples_per_s >= floor
    assert found.plan.job == found.problem.job == asked.job
    if objective == "throughput":
        assert found.estimate.step_time_s == shown.step_time_s
        assert found.tried_sizes == free.tried_sizes


@pytest.mark.parametrize("objective", ["throughput", "price"])
@pytest.mark.parametrize(
    ("floor", "why"), [(330.0, "no plan found reaches"), (1e6, "is out of reach")]
)
def test_what_misses_a_floor_is_no_plan(objective: str, floor: float, why: str) -> None:
    asked = problem(objective=objective, min_throughput_samples_per_s=floor)
    with pytest.raises(InfeasibleError, match=why):
        place(asked, "greedy", budget=Budget(BUDGET))
