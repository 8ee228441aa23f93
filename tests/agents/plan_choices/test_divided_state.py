"""What state replicas divide is chosen by layer, where the simulator finds that faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_agents.plan_choices.divided_state import choose_divided
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s
from tests.envs.small_problems import plan_of
from tests.envs.step_bounds.whole_plans.test_sum_times import drawn, least_simulated_s


def replicas(problem: Problem, divided: tuple[LayerRange, ...]) -> Plan:
    """All layers on each device."""
    last = problem.profile.num_layers - 1
    stages = {f"s{i}": (0, last, device.name) for i, device in enumerate(problem.cluster.devices)}
    plan = plan_of(problem, stages, {(name,): [index] for index, name in enumerate(stages)})
    return plan.changed(sharded_state=divided, overlaps_reduce=True)


@pytest.mark.parametrize("seed", range(10))
def test_no_other_choice_of_layers_is_faster(seed: int) -> None:
    problem = drawn(seed)
    every = (LayerRange(first_layer=0, last_layer=problem.profile.num_layers - 1),)
    for divided in ((), every):
        plan = replicas(problem, divided)
        chosen = choose_divided(problem, plan)
        step_time_s = feasible_step_time_s(problem, chosen)
        assert step_time_s <= feasible_step_time_s(problem, plan)
        assert step_time_s == pytest.approx(least_simulated_s(problem), rel=1e-9)
        if chosen is not plan:
            assert chosen.predicted_step_time_s == step_time_s


def test_some_layers_are_divided_and_others_not() -> None:
    found = set[tuple[int, int]]()
    for seed in range(10):
        problem = drawn(seed)
        chosen = choose_divided(problem, replicas(problem, ()))
        found.add((len(chosen.sharded_layers), problem.profile.num_layers))
    assert any(0 < divided < num_layers for divided, num_layers in found)


def test_nothing_is_divided_where_that_was_not_asked() -> None:
    problem = replace(drawn(0), strategy=Strategy())
    plan = replicas(problem, ())
    assert choose_divided(problem, plan) is plan
