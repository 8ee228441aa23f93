"""What is known of a plan is what the simulator says of it, whoever asks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.schedule.known_runs import known_run
from heterps_envs.simulator import simulate
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.simulate import estimate, is_feasible, simulated_step_time_s
from tests.envs.simulator.test_device_choice import some_placement, some_problem


def _drawn(rng: np.random.Generator) -> tuple[Problem, Plan]:
    while True:
        problem = some_problem(rng)
        try:
            placement = some_placement(rng, problem)
            return problem, bound_plan(problem, placement, planner="drawn", seed=0)
        except InfeasibleError:
            continue


@pytest.mark.parametrize("seed", range(30))
def test_views_that_share_what_is_known_simulate_alike(seed: int) -> None:
    problem, plan = _drawn(np.random.default_rng(seed))
    views = [problem, *problem.views, problem.by_node, problem.over_nodes or problem]
    shared = [view for view in views if known_run(view, plan) is known_run(problem, plan)]
    if all(len(stage.devices) == 1 for stage in plan.stages):
        assert shared == views
    expected = estimate(problem, plan)
    for view in shared:
        # Apart from what was known: of a cluster that nobody has asked about.
        alone = replace(view, known_links=None, slower=None)
        found = estimate(alone, plan)
        assert (found.step_time_s, found.memory_bytes) == (
            expected.step_time_s,
            expected.memory_bytes,
        )
        assert simulated_step_time_s(view, plan) == expected.step_time_s
        timed = plan.changed(predicted_step_time_s=expected.step_time_s)
        assert is_feasible(view, timed) == expected.feasible


def test_a_plan_that_runs_like_another_is_not_simulated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, plan = _drawn(np.random.default_rng(3))
    step_time_s = simulated_step_time_s(problem, plan)
    monkeypatch.delattr(simulate, "action_times")
    named = plan.changed(planner="another", seed=7, predicted_step_time_s=step_time_s)
    assert simulated_step_time_s(problem, named) == step_time_s
    with pytest.raises(NameError):
        simulated_step_time_s(problem, plan.changed(overlaps_reduce=False))
    with pytest.raises(NameError):
        simulated_step_time_s(replace(problem, job=problem.job.changed(optimizer="sgd")), plan)
