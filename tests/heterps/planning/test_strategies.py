"""Placing with options, and with the size of micro-batches left open."""

from dataclasses import replace

import pytest

from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.planning.strategies import (
    micro_batch_size,
    place_over_sizes,
    strategy_of,
)
from heterps_agents.interface.planner import Budget
from heterps_agents.search.uniform import best_uniform, micro_batch_candidates
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem

ALL = Strategy(tensor_parallel=(), recompute="auto", shard_state="auto")


def test_what_fits_on_no_pod_fits_with_groups_that_compute_again() -> None:
    problem = load_problem("llama-70b", "h100-pod", strategy=ALL)
    result = place(problem)
    assert result.estimate.feasible
    assert any(stage.degree > 1 and stage.recompute_layers for stage in result.plan.stages)
    even = best_uniform(problem.plain, Budget())
    assert even is not None
    assert result.estimate.step_time_s <= even.cost
    assert result.bound.step_time_s is not None
    assert result.bound.step_time_s <= result.estimate.step_time_s


def test_options_never_make_a_plan_worse() -> None:
    problem = load_problem("gpt2", "a100-v100-t4")
    without, options = place(problem), place(replace(problem, strategy=ALL))
    assert options.estimate.step_time_s <= without.estimate.step_time_s


def test_a_search_keeps_to_the_degrees_that_are_allowed() -> None:
    problem = load_problem("gpt2", "h100-pod", strategy=Strategy(tensor_parallel=(2,)))
    plan = place(problem, "greedy").plan
    assert {stage.degree for stage in plan.stages} == {2}


def test_a_planner_without_options_says_that_they_are_ignored() -> None:
    problem = load_problem("gpt2", "a100-v100", strategy=ALL)
    with pytest.warns(UserWarning, match="pipeedge places each stage on one device"):
        plan = place(problem, "pipeedge").plan
    assert {stage.degree for stage in plan.stages} == {1}


def test_the_size_of_micro_batches_is_chosen_by_the_simulator() -> None:
    problem = load_problem("gpt2", "a100-v100-t4", global_batch_size=8)
    found = place_over_sizes(problem, "greedy")
    each = [place(sized(problem, size), "greedy") for size in micro_batch_candidates(problem)]
    assert found.estimate.step_time_s == min(one.estimate.step_time_s for one in each)
    assert found.plan.job == found.problem.job


def sized(problem: Problem, size: int) -> Problem:
    return replace(problem, job=problem.job.changed(micro_batch_size=size))


def test_options_of_a_command_are_read_or_refused_in_one_line() -> None:
    assert strategy_of("auto", "auto", "auto") == ALL
    assert strategy_of("1,2", "never", "never").tensor_parallel == (1, 2)
    assert micro_batch_size("auto") is None
    for text in ("two", "1,,2", ""):
        with pytest.raises(HeterpsError, match="--tensor-parallel"):
            strategy_of(text, "never", "never")
    with pytest.raises(HeterpsError, match="recompute"):
        strategy_of("1", "sometimes", "never")
    with pytest.raises(HeterpsError, match="offload"):
        strategy_of("1", "never", "never", "sometimes")
    with pytest.raises(HeterpsError, match="--micro-batch"):
        micro_batch_size("few")
