"""A stage that takes less than its layers: bounds add up less, too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s
from heterps_envs.step_bounds.executable import least_executable_s
from heterps_envs.step_bounds.stage_seconds import least_backward_s, least_forward_s
from tests.envs.small_problems import any_plans, chain_problem

SECONDS = st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1)), min_size=1, max_size=6)


@given(SECONDS)
def test_forward_passes_of_layers_add_up_to_no_more_than_any_stage_of_them(
    drawn: list[tuple[float, float]],
) -> None:
    layers_s, stage_s = np.array(drawn).T
    found = least_forward_s(layers_s, stage_s)
    assert (found >= 0).all()
    for first in range(len(drawn)):
        for stop in range(first + 1, len(drawn) + 1):
            taken_s = max(layers_s[first:stop].sum() + stage_s[first], 0.0)
            assert found[first:stop].sum() <= taken_s + 1e-9


@given(SECONDS, st.floats(0, 1))
def test_of_a_backward_pass_no_part_is_longer_than_its_share_of_the_stage(
    drawn: list[tuple[float, float]], share: float
) -> None:
    layers_s, stage_s = np.array(drawn).T
    found = least_backward_s(layers_s, stage_s, share * layers_s)
    for first in range(len(drawn)):
        for stop in range(first + 1, len(drawn) + 1):
            whole_s = layers_s[first:stop].sum()
            assume(whole_s == 0 or whole_s > 1e-6)
            taken_s = max(whole_s + stage_s[first], share * whole_s)
            for passed in range(first, stop):
                part = layers_s[passed:stop].sum() / whole_s if whole_s > 0 else 0.0
                assert found[passed:stop].sum() <= part * taken_s + 1e-9


def test_layers_of_stages_that_take_no_less_stay_as_they_are() -> None:
    layers_s, stage_s = np.array([1.0, 2.0]), np.array([0.0, 0.5])
    assert least_forward_s(layers_s, stage_s) is layers_s
    assert least_backward_s(layers_s, stage_s, layers_s) is layers_s


def with_stage_seconds(
    problem: Problem, forward_s: list[float], backward_s: list[float]
) -> Problem:
    measurements = tuple(
        each.changed(stage_forward_s=tuple(forward_s), stage_backward_s=tuple(backward_s))
        for each in problem.profile.measurements
    )
    return replace(problem, profile=problem.profile.changed(measurements=measurements))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_plan_is_below_the_bound_where_stages_take_less_than_their_layers(
    data: st.DataObject,
) -> None:
    draw = data.draw
    less_s = st.lists(st.sampled_from([0.0, -0.005, -0.02, 0.01]), min_size=4, max_size=4)
    problem = chain_problem(
        [0.01, 0.02, 0.01, 0.03],
        [0.02, 0.04, 0.03, 0.05],
        num_micro_batches=draw(st.integers(1, 6)),
        speeds=(1.0, 2.0),
        counts=(2, 2),
        parameters=[10**5] * 4,
        optimizer_s=[1e-3] * 4,
    )
    problem = with_stage_seconds(problem, draw(less_s), draw(less_s))
    step_time_s = feasible_step_time_s(problem, draw(any_plans(problem, are_alone=True)))
    assume(np.isfinite(step_time_s))
    assert step_time_s >= least_executable_s(problem) * (1 - 1e-9)
