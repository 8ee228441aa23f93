"""Plans of ours that go round stragglers, from slow-down ratios alone."""

from __future__ import annotations

import pytest

from heterps_agents.recovery.straggler_plan import plan_round_stragglers, slowed_problem
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, simulate
from tests.agents.recovery.test_rules import plan_of, shape
from tests.uneven_problems import MakeProblem


def work(problem: Problem, plan: Plan) -> dict[str, float]:
    """Operations of a step on each device."""
    done: dict[str, float] = {}
    for pipeline in plan.pipelines:
        for stage in map(plan.stage, pipeline.stages):
            flops = sum(problem.profile.layers[layer].forward_flops for layer in stage.layers)
            name = stage.devices[0]
            done[name] = done.get(name, 0.0) + flops * len(pipeline.micro_batches)
    return done


def test_a_straggler_gets_less_work(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(2, 3, 0), memory=4.0)
    plan = plan_of(problem, [(0, "middle-0"), (4, "middle-1"), (7, "middle-2")])
    answer = plan_round_stragglers(problem, plan, {"middle-1": 2.0})
    check_plan(problem, answer.plan)
    assert work(problem, answer.plan)["middle-1"] < 0.7 * work(problem, plan)["middle-1"]
    assert answer.step_s < 0.9 * answer.stale_s
    assert answer.stale_s == pytest.approx(
        simulate(problem, plan, slowdown={"middle-1": 2.0}).step_time_s, rel=0.02
    )
    assert answer.step_s == pytest.approx(estimate(answer.problem, answer.plan).step_time_s)


def test_a_hopeless_device_is_suspended(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(2, 3, 0), memory=4.0)
    plan = plan_of(problem, [(0, "middle-0"), (4, "middle-1"), (7, "middle-2")])
    answer = plan_round_stragglers(problem, plan, {"middle-1": 100.0})
    assert answer.suspended == ("middle-1",)
    assert set(answer.plan.devices) == {"middle-0", "middle-2"}


def test_a_slow_device_of_a_pipeline_gets_less_work_than_its_twin_in_another(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(counts=(2, 2, 0), memory=4.0)
    plan = plan_of(problem, [(0, "fast-0"), (5, "middle-0")], [(0, "fast-1"), (5, "middle-1")])
    answer = plan_round_stragglers(problem, plan, {"fast-1": 2.0})
    assert answer.step_s < answer.stale_s
    done = work(problem, answer.plan)
    assert done.get("fast-1", 0) < 0.8 * done["fast-0"]


def test_the_running_plan_stays_where_nothing_is_better(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(1, 0, 0), memory=4.0)
    plan = plan_of(problem, [(0, "fast")])
    answer = plan_round_stragglers(problem, plan, {"fast": 3.0})
    assert shape(answer.plan) == shape(plan)
    assert answer.suspended == ()


def test_ratios_of_unknown_devices_and_of_nothing_are_refused(make_problem: MakeProblem) -> None:
    problem = make_problem()
    with pytest.raises(HeterpsError, match="no device is called 'fats'; there are fast-0"):
        slowed_problem(problem, {"fats": 2.0})
    with pytest.raises(HeterpsError, match=r"ratios\.fast-0: 0 is not above 0"):
        slowed_problem(problem, {"fast-0": 0.0})
