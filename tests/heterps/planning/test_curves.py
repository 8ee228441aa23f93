"""Curves of a planner's best cost over processor seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps.planning.compare import compare
from heterps.planning.comparison import Comparison
from heterps.planning.curves import curve_of, plan_cost
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.reports.planner_figures import curves_figure
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.job import Strategy
from heterps_envs.problem import Problem

SEARCHES = ("random", "annealing", "genetic", "cross-entropy", "greedy", "exact", "even")


@pytest.fixture(scope="module")
def problem() -> Problem:
    found = load_problem("gpt2", "a100-v100")
    assert len(found.views) == 1
    return found


@pytest.fixture(scope="module")
def comparison(problem: Problem) -> Comparison:
    return compare(problem, SEARCHES, evaluations=1_000)


def test_curves_fall_and_end_at_the_cost_of_the_plan(comparison: Comparison) -> None:
    for row in comparison.rows:
        points, result = comparison.curves[row.planner], comparison.results[row.planner]
        costs = [point.cost for point in points]
        assert costs == sorted(costs, reverse=True)
        assert len(set(costs)) == len(costs)
        assert [p.cpu_seconds for p in points] == sorted(p.cpu_seconds for p in points)
        assert costs[-1] == pytest.approx(plan_cost(result), rel=1e-9)
        assert points[-1].cpu_seconds <= row.planning_cpu_s


def test_searches_say_when_they_improve(comparison: Comparison) -> None:
    by_name = comparison.curves
    assert len(by_name["even"]) == 1
    assert len(by_name["annealing"]) > 1
    for name in ("annealing", "greedy"):
        first, result = by_name[name][0], comparison.results[name]
        assert first.evaluations < result.evaluations / 2
        assert first.cpu_seconds < result.planning_cpu_s


def test_nearest_to_the_best_is_said_of_those_that_came_there(comparison: Comparison) -> None:
    rows = {row.planner: row for row in comparison.rows}
    assert rows["even"].near_best_cpu_s is None
    near_s = rows["exact"].near_best_cpu_s
    assert near_s is not None
    assert near_s <= rows["exact"].planning_cpu_s


def test_the_price_is_in_dollars_for_a_million_samples(problem: Problem) -> None:
    priced = replace(problem, job=problem.job.changed(objective="price"))
    budget = Budget(2_000)
    result = place(priced, "annealing", budget=budget)
    last = curve_of(result, budget.finds)[-1]
    simulated = result.estimate.price_usd_per_million_samples
    closed_form_s = result.estimate.closed_form_step_time_s
    assert closed_form_s is not None
    share = closed_form_s / result.estimate.step_time_s
    assert last.cost == pytest.approx(simulated * share, rel=1e-9)


def test_finds_with_options_are_costed_with_them() -> None:
    strategy = Strategy(tensor_parallel=(2,), recompute="full")
    problem = load_problem("gpt2", "a100-v100", strategy=strategy)
    budget = Budget(2_000)
    result = place(problem, "annealing", budget=budget)
    last = curve_of(result, budget.finds)[-1]
    # The simulator may choose another of the finds than the closed form's best, or a step from one.
    least = min(budget.finds[-1].cost, plan_cost(result))
    assert last.cost == pytest.approx(least, rel=1e-9)


@pytest.mark.slow
def test_what_unlike_views_find_is_costed_alike() -> None:
    problem = load_problem("gpt2", "a100-v100-t4")
    assert len(problem.views) > 1
    budget = Budget(2_000)
    result = place(problem, "annealing", budget=budget)
    costs = [point.cost for point in curve_of(result, budget.finds)]
    assert costs == sorted(costs, reverse=True)
    # The simulator chooses between the plans of the views.
    assert costs[-1] <= plan_cost(result)


def test_the_figure_has_a_step_line_for_each_planner(comparison: Comparison) -> None:
    figure = curves_figure(comparison)
    axes = figure.axes[0]
    labels = {str(line.get_label()).split(" (")[0] for line in axes.lines}
    assert set(SEARCHES) <= labels
    assert axes.get_xscale() == "log"
