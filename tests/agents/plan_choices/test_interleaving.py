"""Interleaved plans: faster where the pipeline is short of micro-batches, and never worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.plan_choices.interleaving import interleave
from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.options import keeps_to
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import estimate
from tests.envs.small_problems import FAST, chain_problem


def four_stages(link: Link = FAST, schedule: str = "interleaved", layers: int = 16) -> Problem:
    return chain_problem(
        [1.0] * layers,
        [2.0] * layers,
        num_micro_batches=8,
        output_bytes=[1.0] * layers,
        link=link,
        schedule=schedule,
    )


def one_stage_each(problem: Problem) -> Plan:
    size = problem.profile.num_layers // 4
    stages = [PlacedStage(size * i, size * (i + 1) - 1, 0) for i in range(4)]
    return bind(problem, stages, planner="test", seed=0)


def test_equal_stages_get_as_many_chunks_as_they_can_fill() -> None:
    problem = four_stages()
    plan = one_stage_each(problem)
    result = interleave(problem, plan, Budget())
    assert len(result.stages) == 16
    assert result.devices == plan.devices
    # The bubble of 3 (F + B) for each stage is a quarter of what it was.
    shown = estimate(problem, result)
    assert shown.step_time_s == pytest.approx(8 * 12 + 3 * 12 / 4)
    assert shown.feasible
    assert result.predicted_step_time_s == shown.step_time_s


def test_slow_links_keep_one_stage_on_each_device() -> None:
    problem = four_stages(Link(latency_s=8.0, bandwidth_bytes_per_s=1.0))
    plan = one_stage_each(problem)
    assert interleave(problem, plan, Budget()) is plan


def test_other_schedules_and_too_few_layers_stay_as_they_are() -> None:
    for problem in (four_stages(schedule="1f1b"), four_stages(layers=4)):
        plan = one_stage_each(problem)
        assert interleave(problem, plan, Budget()) is plan


def test_replicas_pass_their_chunks_in_turn() -> None:
    problem = chain_problem(
        [1.0] * 12, [2.0] * 12, speeds=(1.0, 2.0), counts=(2, 2), schedule="interleaved"
    )
    stages = (PlacedStage(0, 5, 1, 2), PlacedStage(6, 11, 0, 1))
    plan = bind(problem, stages, planner="test", seed=0)
    result = interleave(problem, plan, Budget())
    assert {len(pipeline.stages) for pipeline in result.pipelines} == {4}
    before, after = estimate(problem, plan), estimate(problem, result)
    assert after.step_time_s < before.step_time_s
    assert after.feasible


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "strategy"),
    [
        ({"recompute": True}, Strategy(recompute="full")),
        ({"recompute": True, "shards_state": True}, Strategy(recompute="full", shard_state="auto")),
        ({"degree": 2}, Strategy(tensor_parallel=(1, 2))),
    ],
    ids=["recompute", "sharded state", "groups"],
)
def test_chunks_are_carried_out_as_the_stages_were(way: dict[str, Any], strategy: Strategy) -> None:
    problem = replace(four_stages(), strategy=strategy)
    stages = [PlacedStage(8 * i, 8 * i + 7, 0, 2, **way) for i in range(2)]
    plan = bind(problem, stages, planner="test", seed=0)
    result = interleave(problem, plan, Budget())
    assert len(result.stages) > len(plan.stages)
    assert keeps_to(result, strategy)
    assert result.sharded_layers == plan.sharded_layers
    assert set(result.device_groups) == set(plan.device_groups)
    again = [layer for stage in result.stages for layer in stage.recompute_layers]
    assert sorted(again) == sorted(layer for s in plan.stages for layer in s.recompute_layers)
    assert estimate(problem, result).feasible
