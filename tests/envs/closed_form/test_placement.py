"""Placements, their codes, and plans read as placements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.cluster import DeviceGroup
from heterps_configs.documents.device import Emulation
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError, PlanMismatchError
from heterps_envs.closed_form.formula import MAX_REPLICAS, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import (
    PlacedStage,
    check_plan,
    closed_form_of_plan_s,
    closed_form_step_time_s,
    decode,
    encode,
    placement_of,
)
from heterps_envs.options import option_tables, options_of
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import estimate
from tests.envs.simulator.test_groups import measured
from tests.envs.small_problems import (
    all_placement_codes,
    all_placements,
    chain_problem,
    placements,
    plan_of,
)


@given(st.integers(1, 12).flatmap(lambda layers: placements(layers, (70, 3, 9), 64)))
def test_decode_is_the_inverse_of_encode(placement: tuple[PlacedStage, ...]) -> None:
    assert decode(encode(placement)) == placement


def test_all_codes_at_once_are_those_of_all_placements() -> None:
    for num_layers, counts in ((1, (2,)), (3, (3,)), (4, (1, 2)), (4, (1, 1, 1))):
        codes = all_placement_codes(num_layers, counts)
        one_by_one = [encode(placement) for placement in all_placements(num_layers, counts)]
        assert codes.dtype == np.int32
        assert sorted(codes.tolist()) == sorted(code.tolist() for code in one_by_one)


def test_the_largest_code_fits_in_sixteen_bits() -> None:
    placement = (PlacedStage(0, 0, 15, MAX_REPLICAS), PlacedStage(1, 1, 15, MAX_REPLICAS))
    code = encode(placement)
    assert code.dtype == np.int32
    assert code.min() > 0
    assert decode(code) == placement


@given(st.data())
def test_a_bound_placement_is_read_back(data: st.DataObject) -> None:
    problem = chain_problem([1] * 5, [1] * 5, num_micro_batches=12, counts=(3, 4), speeds=(1, 2))
    placement = data.draw(placements(5, (3, 4)))
    plan = bind(problem, placement, planner="test", seed=0)
    assert placement_of(problem, plan) == placement


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize(
    "placement",
    [
        (PlacedStage(0, 1, 0, 3, recompute=True),),
        (PlacedStage(0, 0, 0, 2, degree=2, recompute=True), PlacedStage(1, 1, 0)),
        (PlacedStage(0, 0, 0, 1, degree=4), PlacedStage(1, 1, 0, 2, shards_state=True)),
        (PlacedStage(0, 1, 0, 4, degree=2, shards_state=True),),
    ],
)
def test_a_placement_with_options_is_read_back_and_takes_what_its_options_take(
    placement: tuple[PlacedStage, ...], optimizer: str
) -> None:
    problem = measured(num_micro_batches=6)
    problem = replace(problem, job=problem.job.changed(optimizer=optimizer))
    plan = bind(problem, placement, planner="test", seed=0)
    assert placement_of(problem, plan) == placement
    options = options_of(
        problem, Strategy(tensor_parallel=(), recompute="auto", shard_state="auto")
    )
    kernel = kernel_tables(option_tables(problem, options))
    by_options = evaluate(encode(placement, options)[None], kernel)[0][0]
    assert closed_form_of_plan_s(problem, plan, placement) == pytest.approx(by_options, rel=1e-12)
    assert estimate(problem, plan).closed_form_step_time_s == pytest.approx(by_options, rel=1e-12)


@pytest.mark.parametrize(
    "fields",
    [{"recompute_layers": (0,)}, {"devices": ("d0-0", "d0-1"), "tensor_shares": (0.25, 0.75)}],
)
def test_no_placement_says_which_layers_compute_again_nor_who_has_which_share(
    fields: dict[str, object],
) -> None:
    problem = measured()
    plan = bind(problem, (PlacedStage(0, 1, 0),), planner="test", seed=0)
    assert placement_of(problem, plan.changed(stages=(plan.stages[0].changed(**fields),))) is None


@pytest.mark.parametrize(
    ("stages", "pipelines"),
    [
        # Two stages on one device.
        ({"a": (0, 1, "d0-0"), "b": (2, 3, "d0-0")}, {("a", "b"): range(8)}),
        # Unequal shares of two replicas.
        ({"a": (0, 3, "d0-0"), "b": (0, 3, "d0-1")}, {("a",): range(5), ("b",): range(5, 8)}),
        # Replicas on unlike devices.
        ({"a": (0, 3, "d0-0"), "b": (0, 3, "d1-0")}, {("a",): range(4), ("b",): range(4, 8)}),
        # Pipelines with different cuts.
        (
            {"a": (0, 3, "d0-0"), "b": (0, 1, "d0-1"), "c": (2, 3, "d0-2")},
            {("a",): range(4), ("b", "c"): range(4, 8)},
        ),
    ],
)
def test_other_plans_are_no_placement(
    stages: dict[str, tuple[int, int, str]], pipelines: dict[tuple[str, ...], range]
) -> None:
    problem = chain_problem([1] * 4, [1] * 4, counts=(4, 4), speeds=(1, 1))
    assert placement_of(problem, plan_of(problem, stages, pipelines)) is None


def test_the_closed_form_of_a_placement_ignores_its_memory() -> None:
    problem = chain_problem([1.0], [2.0], parameters=[10], memory_bytes=[1])
    assert closed_form_step_time_s(problem, (PlacedStage(0, 0, 0),)) == 24.0


def test_a_plan_for_another_model_cluster_or_job_is_refused() -> None:
    problem = chain_problem([1, 1], [1, 1])
    plan = bind(problem, (PlacedStage(0, 1, 0),), planner="test", seed=0)
    check_plan(problem, plan)
    with pytest.raises(PlanMismatchError, match="made for the model"):
        check_plan(chain_problem([1, 1, 1], [1, 1, 1]), plan)
    with pytest.raises(PlanMismatchError, match="no device called 'd0-0'"):
        check_plan(chain_problem([1, 1], [1, 1], counts=(1,)), plan)
    with pytest.raises(PlanMismatchError, match="routes 8 micro-batches, the job has 4"):
        check_plan(chain_problem([1, 1], [1, 1], num_micro_batches=4), plan)
    with pytest.raises(PlanMismatchError, match="schedule: 1f1b in the plan, gpipe in the problem"):
        check_plan(chain_problem([1, 1], [1, 1], schedule="gpipe"), plan)
    check_plan(chain_problem([1, 1], [1, 1], objective="price"), plan)


def test_a_tensor_parallel_group_is_on_one_node_and_emulated_as_a_whole() -> None:
    problem = chain_problem([1, 1], [1, 1], speeds=(1, 2), counts=(2, 2))
    plan = bind(problem, (PlacedStage(0, 1, 0),), planner="test", seed=0)
    group = Stage(name="s0", first_layer=0, last_layer=1, devices=("d0-0", "d0-1"))
    check_plan(problem, plan.changed(stages=(group,)))
    mixed = plan.changed(stages=(group.changed(devices=("d0-0", "d1-0")),))
    check_plan(problem, mixed)
    assert placement_of(problem, mixed) is None
    slow = problem.cluster.device_types[1].changed(
        emulation=Emulation(host_device_type="cpu", slowdown=2.0)
    )
    types = (problem.cluster.device_types[0], slow)
    half = replace(problem, cluster=problem.cluster.changed(device_types=types))
    with pytest.raises(HeterpsError, match="of 'd0-0' and 'd1-0' one is emulated"):
        check_plan(half, mixed)
    offloads = mixed.stages[0].changed(offloaded_layers=(1,))
    with pytest.raises(HeterpsError, match="a group that offloads has equal devices"):
        check_plan(problem, mixed.changed(stages=(offloads,)))
    (node,) = problem.cluster.nodes
    first, second = (
        node.changed(name=name, devices=(DeviceGroup(name=name, type="class0"),))
        for name in ("a", "b")
    )
    apart = problem.cluster.changed(nodes=(first, second), inter_node_link=node.link)
    with pytest.raises(HeterpsError, match="'a' is on node 'a' and 'b' on 'b'"):
        check_plan(
            replace(problem, cluster=apart),
            plan.changed(stages=(group.changed(devices=("a", "b")),)),
        )


def test_layers_are_offloaded_only_where_there_is_a_link_to_the_host() -> None:
    problem = chain_problem([1, 1], [1, 1])
    plan = bind(problem, (PlacedStage(0, 1, 0),), planner="test", seed=0)
    away = plan.changed(stages=(plan.stages[0].changed(offloaded_layers=(1,)),))
    with pytest.raises(HeterpsError, match="'class0' has no host_bandwidth_bytes_per_s"):
        check_plan(problem, away)


def test_more_passes_than_memory_holds_are_refused_before_they_are_listed() -> None:
    size = 32
    problem = chain_problem([1.0] * size, [2.0] * size, num_micro_batches=2**16, counts=(size,))
    stages = {f"s{index}": (index, index, f"d0-{index}") for index in range(size)}
    plan = plan_of(problem, stages, {tuple(stages): range(2**16)})
    with pytest.raises(HeterpsError, match=r"2097152 passes in a step; at most 2000000"):
        check_plan(problem, plan)


def test_more_stages_than_a_code_has_bits_for_have_a_closed_form() -> None:
    # The slow one is behind the 256th; that one stage keeps all makes the plan's own tables count.
    forward_s = [1.0] * 300
    forward_s[280] = 50.0
    problem = chain_problem(forward_s, [2.0] * 300, counts=(300,))
    stages = [PlacedStage(0, 0, 0), *(PlacedStage(i, i, 0, recompute=True) for i in range(1, 300))]
    plan = bind(problem, stages, planner="test", seed=0)
    shown = estimate(problem, plan)
    assert shown.closed_form_step_time_s == pytest.approx(shown.step_time_s)
