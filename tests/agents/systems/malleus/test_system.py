"""Malleus on our problems: slow devices get less, go in front, or are suspended."""

from __future__ import annotations

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.malleus.system import Malleus
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, simulate
from tests.agents.slowed import slowed_problem
from tests.uneven_problems import MakeProblem


def placed(problem: Problem) -> Plan:
    plan = Malleus().plan(problem, Budget())
    check_plan(problem, plan)
    return plan


def work(problem: Problem, plan: Plan) -> dict[str, int]:
    """Layers times micro-batches of a step on each device."""
    done = dict.fromkeys(problem.device_named, 0)
    for pipeline in plan.pipelines:
        for stage in map(plan.stage, pipeline.stages):
            done[stage.devices[0]] += len(stage.layers) * len(pipeline.micro_batches)
    return done


def test_a_straggler_gets_less_work_and_the_step_is_faster_than_that_of_the_old_plan(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(counts=(0, 3, 0), memory=4.0)
    before = placed(problem)
    slowed = slowed_problem(problem, {"middle-1": 2.0})
    after = placed(slowed)
    assert work(slowed, after)["middle-1"] < 0.7 * work(problem, before)["middle-1"]
    stale_s = simulate(problem, before, slowdown={"middle-1": 2.0}).step_time_s
    assert estimate(slowed, after).step_time_s < 0.95 * stale_s
    # Its objective knows neither fill nor links: the new plan is the better one by that.
    own = Malleus().answer(slowed, Budget()).own_cost
    assert own is not None
    assert own.seconds < estimate(slowed, before).step_time_s


def test_a_hopeless_device_is_suspended(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(0, 3, 0), memory=4.0)
    plan = placed(slowed_problem(problem, {"middle-1": 100.0}))
    assert set(plan.devices) == {"middle-0", "middle-2"}


def test_slow_devices_stand_in_front_of_their_pipelines(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(2, 2, 0), memory=4.0)
    plan = placed(problem)
    for pipeline in plan.pipelines:
        kinds = [plan.stage(name).devices[0].partition("-")[0] for name in pipeline.stages]
        assert kinds == sorted(kinds, reverse=True), "middle before fast"


def test_micro_batches_follow_the_speeds_of_the_pipelines(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(0, 2, 0), memory=8.0, global_batch_size=30)
    plan = placed(slowed_problem(problem, {"middle-0": 2.0}))
    done = work(problem, plan)
    assert done["middle-1"] == pytest.approx(2 * done["middle-0"], rel=0.2)


def test_layers_that_fit_on_no_pipeline_are_refused_in_one_line(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^malleus: 10 layers fit on no 1 pipelines"):
        placed(make_problem(memory=0.05))


def test_slow_devices_are_left_out_where_memory_allows_no_longer_pipeline() -> None:
    """In front of 16 stages, a V100 would hold 16 micro-batches of a layer of Llama 7B."""
    job = Job(global_batch_size=32, dtype="bfloat16")
    problem = Problem(load_profile("llama-7b"), load_cluster("a100-v100-t4"), job)
    assert {name.partition("-")[0] for name in placed(problem).devices} == {"a100"}
