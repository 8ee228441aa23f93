"""The stages of a plan that was simulated are never said to take longer than it takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s
from tests.envs.simulator.test_compiled_simulator import runs
from tests.envs.simulator.test_memory_timeline import planned
from tests.envs.small_problems import chain_problem, plan_of
from tests.envs.step_bounds.whole_plans.staged_plans import least_s, may_take, spans_of


def survives_its_own_time(problem: Problem, plan: Plan) -> bool:
    step_time_s = feasible_step_time_s(problem, plan)
    assume(np.isfinite(step_time_s))
    return may_take(problem, spans_of(problem, plan), step_time_s * (1 + 1e-9))


@pytest.mark.slow
@given(runs(are_alone=True), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_stages_of_any_plan_survive_its_step_time(case: tuple[Problem, Plan], more: int) -> None:
    problem, plan = case
    assume(problem.job.schedule != "interleaved")
    if more and problem.job.schedule == "1f1b":
        stages = tuple(stage.changed(in_flight=more) for stage in plan.stages)
        plan = plan.changed(stages=stages)
    allowed = Strategy(shard_state="auto") if plan.sharded_state else Strategy()
    assert survives_its_own_time(replace(problem, strategy=allowed), plan)


@pytest.mark.slow
@given(planned(), st.data())
@settings(max_examples=60, deadline=None)
def test_so_do_those_that_compute_some_layers_again_or_shard_state_in_tight_memory(
    found: tuple[Problem, Plan], data: st.DataObject
) -> None:
    problem, plan = found
    assume(problem.job.schedule != "interleaved")
    stages = tuple(
        stage.changed(
            recompute_layers=tuple(layer for layer in stage.layers if data.draw(st.booleans()))
        )
        for stage in plan.stages
    )
    sharded = (LayerRange(first_layer=0, last_layer=4),) if data.draw(st.booleans()) else ()
    allowed = replace(problem, strategy=Strategy(recompute="auto", shard_state="auto"))
    assert survives_its_own_time(allowed, plan.changed(stages=stages, sharded_state=sharded))


@pytest.mark.slow
@given(planned(), st.integers(0, 3), st.integers(1, 4), st.integers(0, 9))
# Most plans do not fit: they say nothing.
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_so_do_those_with_layers_that_share_parameters(
    found: tuple[Problem, Plan], owner: int, behind: int, own: int
) -> None:
    problem, plan = found
    assume(problem.job.schedule != "interleaved")
    user, layers = min(owner + behind, 4), list(problem.profile.layers)
    number = max(layers[owner].num_parameters, 1)
    layers[owner] = layers[owner].changed(num_parameters=number)
    layers[user] = layers[user].changed(
        num_parameters=number + own, tied_to=layers[owner].name, tied_parameters=number
    )
    profile = problem.profile.changed(layers=tuple(layers))
    same = plan.changed_unchecked(model_fingerprint=profile.layers_fingerprint())
    assert survives_its_own_time(replace(problem, profile=profile), same)


def test_a_chain_of_two_stages_is_known_to_the_last_digit() -> None:
    problem = chain_problem(
        [1.0, 2.0], [3.0, 4.0], num_micro_batches=4, counts=(2,), optimizer_s=[0.5, 0.25]
    )
    plan = plan_of(problem, {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-1")}, {("a", "b"): range(4)})
    step_time_s = feasible_step_time_s(problem, plan)
    assert least_s(problem, spans_of(problem, plan), 100.0) == pytest.approx(step_time_s, rel=1e-5)


def test_replicas_behind_a_stage_begin_and_end_one_after_the_other() -> None:
    """Two micro-batches of 6 s: who begins first ends last, after 2 s and before 4 s."""
    problem = chain_problem([2.0, 3.0], [2.0, 3.0], num_micro_batches=4, counts=(3,))
    plan = plan_of(
        problem,
        {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-1"), "c": (1, 1, "d0-2")},
        {("a", "b"): (0, 2), ("a", "c"): (1, 3)},
    )
    found = least_s(problem, spans_of(problem, plan), 100.0)
    assert found == pytest.approx(18.0, rel=1e-5)
    assert found <= feasible_step_time_s(problem, plan)
