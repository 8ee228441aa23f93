"""Division in proportion, and the messages of divisions that do not fit."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import planner_named
from heterps_agents.search.proportional import (
    Rule,
    by_count,
    by_memory,
    by_speed,
    cut_in_proportion,
    divided,
)
from heterps_agents.search.starts import simple_codes
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.placement import Placement, decode
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from tests.envs.small_problems import with_splits

MakeProblem = Callable[..., Problem]


def test_equal_devices_get_equal_shares() -> None:
    np.testing.assert_array_equal(cut_in_proportion(np.ones(12), np.ones(4)), [3, 6, 9, 12])


def test_shares_follow_the_devices() -> None:
    np.testing.assert_array_equal(
        cut_in_proportion(np.ones(10), np.array([1.0, 3.0, 1.0])), [2, 8, 10]
    )


def test_a_heavy_layer_goes_to_one_device() -> None:
    weight = np.array([1.0, 1.0, 8.0, 1.0, 1.0])
    np.testing.assert_array_equal(cut_in_proportion(weight, np.ones(3)), [2, 3, 5])


def placed(problem: Problem, rule: Rule) -> Placement:
    return decode(divided(problem, Question.of(problem, Budget(1)), rule))


def test_even_uses_every_device_in_the_order_of_the_file(make_problem: MakeProblem) -> None:
    placement = placed(make_problem(), by_count)
    assert [stage.device_class for stage in placement] == [0, 0, 1, 1, 1, 2, 2]
    lengths = [stage.last_layer - stage.first_layer + 1 for stage in placement]
    assert max(lengths) - min(lengths) <= 1


def test_even_leaves_the_last_devices_idle_when_there_are_more_than_layers(
    make_problem: MakeProblem,
) -> None:
    placement = placed(make_problem(counts=(4, 4, 4)), by_count)
    assert [stage.device_class for stage in placement] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_fast_devices_get_more_layers_and_large_ones_more_bytes(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(1, 1, 1))
    assert placed(problem, by_speed)[0].last_layer > placed(problem, by_count)[0].last_layer
    state = problem.tables.state_bytes
    held = [
        state[stage.first_layer : stage.last_layer + 1].sum() / problem.tables.memory_bytes[kind]
        for kind, stage in enumerate(placed(problem, by_memory))
    ]
    assert max(held) < 2 * min(held)


def test_a_division_that_does_not_fit_names_the_stage_and_the_bytes(
    make_problem: MakeProblem,
) -> None:
    with pytest.raises(
        InfeasibleError, match=r"even: the stage of layers 0-2 .* GiB on one fast, .* too many"
    ):
        planner_named("even").plan(make_problem(counts=(1, 1, 1), memory=0.5), Budget())


def test_a_division_that_misses_the_floor_says_what_it_reaches(make_problem: MakeProblem) -> None:
    problem = make_problem(min_throughput_samples_per_s=30)
    with pytest.raises(InfeasibleError, match=r"reaches 10\.\d+ samples/s; the floor is 30"):
        planner_named("even").plan(problem, Budget())


def test_with_open_options_neighbours_form_groups_of_what_is_cheapest(
    make_problem: MakeProblem,
) -> None:
    plain = make_problem(counts=(2, 4, 0))
    groups = Strategy(tensor_parallel=(2,), recompute="full")
    for name in ("even", "memory-proportional", "speed-proportional"):
        plan = planner_named(name).plan(with_splits(replace(plain, strategy=groups)), Budget())
        assert {len(stage.devices) for stage in plan.stages} == {2}
        assert all(len(stage.recompute_layers) == len(stage.layers) for stage in plan.stages)
        assert len(plan.stages) == 3
        either = with_splits(replace(plain, strategy=Strategy(recompute="auto")))
        kept, chosen = (planner_named(name).plan(each, Budget()) for each in (plain, either))
        assert estimate(either, chosen).step_time_s <= estimate(plain, kept).step_time_s


def test_starts_of_searches_are_codes_of_the_options_that_are_allowed(
    make_problem: MakeProblem,
) -> None:
    # One of three classes has groups: its option is the first, whatever its class is.
    problem = with_splits(make_problem(counts=(1, 2, 1)))
    question = Question.of(replace(problem, strategy=Strategy(tensor_parallel=(2,))), Budget())
    for code in simple_codes(problem, question):
        assert {stage.device_class for stage in decode(code, question.options)} == {1}
