"""Malleus on our problems: slow devices get less, go in front, or are suspended."""

from __future__ import annotations

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.malleus.system import Malleus
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import estimate, simulate
from tests.agents.slowed import slowed_problem
from tests.agents.systems.malleus.grouped_problems import LAYERS, grouped_problem
from tests.envs.simulator.test_groups import groups_plan
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


def two_groups(problem: Problem) -> Plan:
    half = LAYERS // 2
    return groups_plan(problem, {"a": (0, half - 1, [0, 1]), "b": (half, LAYERS - 1, [2, 3])})


def test_stages_are_groups_where_groups_are_worth_it() -> None:
    problem = grouped_problem()
    plan = placed(problem)
    assert {stage.degree for stage in plan.stages} == {2}
    alone = Malleus().plan(problem.plain, Budget())
    assert {stage.degree for stage in alone.stages} == {1}
    assert estimate(problem, plan).step_time_s < estimate(problem, alone).step_time_s


def test_degrees_are_those_that_a_strategy_allows() -> None:
    for degree in (2, 4):
        strategy = Strategy(tensor_parallel=(degree,))
        plan = placed(grouped_problem(strategy=strategy))
        assert {stage.degree for stage in plan.stages} == {degree}
    with pytest.raises(HeterpsError, match=r"^malleus: no node has room for a group"):
        placed(grouped_problem(strategy=Strategy(tensor_parallel=(8,))))


def test_a_straggler_is_split_off_its_group_and_the_other_device_works_on() -> None:
    problem = slowed_problem(grouped_problem(), {"d0-3": 5.0})
    plan = placed(problem)
    assert {stage.devices for stage in plan.stages} == {("d0-2",), ("d0-0", "d0-1")}
    bound_s = estimate(problem, two_groups(problem)).step_time_s
    assert estimate(problem, plan).step_time_s < bound_s / 3


@pytest.mark.parametrize("ratio", [1.0, 1.3, 2.0, 4.0, 100.0])
def test_regrouping_a_running_plan_is_never_slower_than_it_nor_than_keeping_its_groups(
    ratio: float,
) -> None:
    problem = slowed_problem(grouped_problem(), {"d0-3": ratio})
    running = two_groups(problem)
    regrouped = Malleus(running=running).plan(problem, Budget())
    # As if no other groups were allowed.
    pairs = slowed_problem(
        grouped_problem(strategy=Strategy(tensor_parallel=(2,))), {"d0-3": ratio}
    )
    kept = Malleus(running=running).plan(pairs, Budget())
    times = [estimate(problem, plan).step_time_s for plan in (regrouped, kept, running)]
    assert times == sorted(times)


def test_a_plan_in_groups_can_be_run() -> None:
    """Where replicas would be in unlike groups, another answer is taken."""
    for ratio in (1.0, 1.5, 3.0):
        problem = slowed_problem(grouped_problem(), {"d0-3": ratio})
        assert can_run(problem, placed(problem))


def test_activations_that_must_be_computed_again_are_no_choice_of_malleus() -> None:
    problem = grouped_problem(strategy=Strategy(tensor_parallel=(), recompute="full"))
    with pytest.warns(UserWarning, match="recompute full is ignored"):
        placed(problem)
