"""Piper on our problems: recomputation where memory is short, replicas in turns."""

from __future__ import annotations

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.piper.system import Piper
from heterps_configs.errors import InfeasibleError
from heterps_envs.simulator.simulate import estimate
from tests.agents.systems.equal_devices import equal_problem


def test_layers_are_computed_again_only_where_memory_is_short() -> None:
    roomy = equal_problem(num_nodes=1, devices_of_a_node=4)
    plan = Piper().plan(roomy, Budget())
    assert not any(stage.recompute_layers for stage in plan.stages)
    short = equal_problem(num_nodes=1, devices_of_a_node=4, memory_bytes=700_000_000)
    tight = Piper().plan(short, Budget())
    assert any(stage.recompute_layers for stage in tight.stages)
    assert estimate(short, tight).feasible
    assert estimate(short, tight).step_time_s > estimate(roomy, plan).step_time_s


def test_replicas_take_every_so_many_micro_batches() -> None:
    problem = equal_problem(num_nodes=1, devices_of_a_node=4, num_parameters=10)
    plan = Piper().plan(problem, Budget())
    assert [len(pipeline.micro_batches) for pipeline in plan.pipelines] == [4, 4, 4, 4]


def test_what_fits_on_no_device_is_named() -> None:
    problem = equal_problem(num_nodes=1, devices_of_a_node=4, memory_bytes=90_000_000)
    with pytest.raises(InfeasibleError, match=r"^piper: node layer0 needs at least"):
        Piper().plan(problem, Budget())
