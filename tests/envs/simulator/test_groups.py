"""Tensor-parallel groups, offloaded layers and sharded state: times and memory by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from heterps_configs.documents.cluster import HostTimes, Link
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_envs.schedule.reduce_buckets import reduce_buckets, reduce_bytes
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.reduce_copies import reduce_copies
from heterps_envs.simulator.simulate import estimate, simulate
from tests.envs.small_problems import chain_problem, plan_of

LINK = Link(latency_s=0.5, bandwidth_bytes_per_s=4.0)
SPLIT = TensorSplit(
    unit="heads",
    num_units=8,
    parameters=80,
    forward_flops=8e12,
    backward_flops=16e12,
    activation_bytes=60.0,
    forward_sums=(8.0, 8.0),
    backward_sums=(8.0,),
)
# Forward and backward seconds of the two layers, by devices of a group.
SECONDS = {
    1: ((4.0, 6.0), (8.0, 9.0)),
    2: ((2.0, 3.0), (4.0, 4.0)),
    4: ((1.0, 2.0), (2.0, 3.0)),
}


def measured(degrees: Sequence[int] = (1, 2, 4), link: Link = LINK, **values: Any) -> Problem:
    """Two layers that a group splits, on eight equal devices, measured on groups of some sizes."""
    problem = chain_problem(
        [4.0, 6.0], [8.0, 9.0], parameters=[100, 100], activation_bytes=[80, 80],
        output_bytes=[8, 0], **{"num_micro_batches": 2, "link": link, **values},
    )  # fmt: skip
    layers = tuple(
        layer.changed(forward_flops=10e12, backward_flops=20e12, tensor_split=SPLIT)
        for layer in problem.profile.layers
    )
    found = tuple(
        Measurement(
            device_type="class0", tensor_parallel=degree, micro_batch_size=1,
            forward_s=SECONDS[degree][0], backward_s=SECONDS[degree][1], optimizer_s=(1.0, 1.0),
        )
        for degree in degrees
    )  # fmt: skip
    return replace(problem, profile=problem.profile.changed(layers=layers, measurements=found))


def groups_plan(
    problem: Problem,
    stages: Mapping[str, tuple[int, int, Sequence[int]]],
    routes: Mapping[tuple[str, ...], Sequence[int]] | None = None,
    **fields: Any,
) -> Plan:
    """A plan from `name -> (first layer, last layer, devices)`; one route unless told."""
    alone = {
        name: (first, last, f"d0-{devices[0]}") for name, (first, last, devices) in stages.items()
    }
    plan = plan_of(problem, alone, routes or {tuple(stages): range(problem.job.num_micro_batches)})
    groups = tuple(
        stage.changed(devices=tuple(f"d0-{index}" for index in stages[stage.name][2]))
        for stage in plan.stages
    )
    return plan.changed(stages=groups, **fields)


def spans(found: Estimate, device: str, action: str) -> list[tuple[float, float]]:
    return [
        (event.start_s, event.end_s)
        for event in found.timeline
        if (event.device, event.action) == (device, action)
    ]


def four_before_two(problem: Problem) -> Plan:
    return groups_plan(problem, {"s0": (0, 0, [0, 1, 2, 3]), "s1": (1, 1, [4, 5])})


def test_a_group_of_four_before_a_group_of_two() -> None:
    problem = measured()
    found = simulate(problem, four_before_two(problem))
    # A message takes 2 s and 0.5 s; each of two senders has two copies of a gradient to send.
    for name in ("d0-0", "d0-3"):
        assert spans(found, name, "forward") == [(0, 1), (1, 2)]
        assert spans(found, name, "backward") == [(15, 17), (22, 24)]
    assert spans(found, "d0-5", "forward") == [(3.5, 6.5), (10.5, 13.5)]
    assert spans(found, "d0-5", "backward") == [(6.5, 10.5), (13.5, 17.5)]
    assert spans(found, "d0-4", "send") == [(10.5, 15), (17.5, 22)]
    assert found.step_time_s == 25  # with the optimizer
    busy_s = 4 * (2 * 1 + 2 * 2 + 1) + 2 * (2 * 3 + 2 * 4 + 1)
    assert found.bubble_share == pytest.approx(1 - busy_s / (6 * 25))
    assert found.price_usd_per_million_samples == pytest.approx(6 / 3600 * 25 / 2 * 1e6)
    assert found.layer_times == "measured"
    assert found.closed_form_step_time_s == 25


def test_every_device_of_a_group_holds_its_part() -> None:
    problem = measured()
    found = estimate(problem, four_before_two(problem), with_memory=True)
    # Of 100 parameters 80 are split, of 80 bytes 60: weights and gradients, two micro-batches in
    # flight with what goes out, and two gradients that were asked for.
    assert {found.memory_bytes[f"d0-{i}"] for i in range(4)} == {8 * 40 + 2 * (35 + 8) + 2 * 8}
    alone = estimate(problem, groups_plan(problem, {"s0": (0, 1, [0])})).memory_bytes["d0-0"]
    pair = estimate(problem, groups_plan(problem, {"s0": (0, 1, [0, 1])})).memory_bytes
    assert alone == 8 * 200 + 160
    assert pair == dict.fromkeys(("d0-0", "d0-1"), 8 * 120 + 100)
    assert [curve.device for curve in found.memory_curves] == [f"d0-{i}" for i in range(6)]


def test_what_was_not_measured_on_a_group_is_said() -> None:
    problem = measured(degrees=(1,))
    found = estimate(problem, four_before_two(problem), with_interval=True)
    assert found.layer_times == "partly measured"
    assert found.step_time_low_s is not None
    assert found.step_time_low_s < found.step_time_s
    assert [note[:20] for note in found.notes] == ["groups of 4 class0: ", "groups of 2 class0: "]


@pytest.mark.parametrize(
    ("degrees", "rings_in_turn", "parameters"), [((2, 2), 1, 60), ((4, 2), 2, 60), ((4, 4), 1, 40)]
)
def test_ranks_of_replicas_sum_their_gradients_in_rings_of_their_own(
    degrees: tuple[int, int], rings_in_turn: int, parameters: int
) -> None:
    problem = measured()
    one, two = degrees
    plan = groups_plan(
        problem,
        {"a": (0, 1, range(one)), "b": (0, 1, range(4, 4 + two))},
        {("a",): [0], ("b",): [1]},
        overlaps_reduce=False,
    )
    found = simulate(problem, plan)
    ((start_s, end_s),) = spans(found, "d0-5", "reduce")  # the group that comes last
    num_bytes = 4 * 2 * parameters
    assert end_s - start_s == pytest.approx(2 * (rings_in_turn * 0.5 + num_bytes / 2 / 4))
    assert [end for _, end in spans(found, "d0-1", "reduce")] == [end_s]


def two_replicas(problem: Problem, **fields: Any) -> Plan:
    stages = {"a": (0, 1, [0]), "b": (0, 1, [1])}
    return groups_plan(problem, stages, {("a",): [0], ("b",): [1]}, **fields)


def test_replicas_that_shard_their_state_hold_and_step_a_part_of_it_and_gather_the_rest() -> None:
    base = measured()
    problem = replace(base, job=base.job.changed(optimizer="sgd-momentum", overlaps_reduce=False))
    sharded = LayerRange(first_layer=1, last_layer=1)
    plan = two_replicas(problem, sharded_state=(sharded,))
    found, (curve, _) = (
        simulate(problem, plan),
        estimate(problem, plan, with_memory=True).memory_curves,
    )
    # The moments of 100 parameters of the first layer, and of half as many of the second.
    assert curve.optimizer_bytes == 4 * 100 + 4 * 50
    ((start_s, end_s),) = spans(found, "d0-0", "step")
    assert end_s - start_s == 1.0 + 0.5
    all_reduce_s = 2 * (0.5 + 4 * 100 / 2 / 4)
    seconds = [end_s - start_s for start_s, end_s in spans(found, "d0-1", "reduce")]
    assert seconds == [all_reduce_s / 2, all_reduce_s]  # the second layer comes first
    assert spans(found, "d0-1", "gather") == [(end_s, end_s + all_reduce_s / 2)]
    assert found.step_time_s == end_s + all_reduce_s / 2


def test_a_group_that_computes_again_sums_again() -> None:
    problem = measured(degrees=(1,))
    plan = groups_plan(problem, {"s0": (0, 1, [0, 1])})
    again = plan.changed(stages=(plan.stages[0].changed(recompute_layers=(1,)),))
    kept, dropped = (simulate(problem, each) for each in (plan, again))
    layer_s = float(problem.at_degree(2).tables.forward_s[1, 0])
    assert layer_s > 2 * 2 * (0.5 + 4 / 4)  # its sums
    assert dropped.step_time_s - kept.step_time_s == pytest.approx(2 * layer_s)


def with_host_link(problem: Problem, bytes_per_s: float, kind: str = "cpu") -> Problem:
    types = [
        entry.changed(host_bandwidth_bytes_per_s=bytes_per_s, kind=kind)
        for entry in problem.cluster.device_types
    ]
    return replace(problem, cluster=problem.cluster.changed(device_types=types))


def test_offloading_takes_what_the_link_to_the_host_cannot_hide() -> None:
    problem = with_host_link(measured(), 10.0)
    stages = {"s0": (0, 0, [0]), "s1": (1, 1, [1])}
    plan = groups_plan(problem, stages)
    away = plan.changed(stages=(plan.stages[0], plan.stages[1].changed(offloaded_layers=(1,))))
    kept, offloaded = (simulate(problem, each) for each in (plan, away))
    # 80 bytes, of which 8 came in: forward 6 s, backward 9 s, 8 s each way.
    assert [round(end - start, 9) for start, end in spans(kept, "d0-1", "forward")] == [6, 6]
    assert [round(end - start, 9) for start, end in spans(offloaded, "d0-1", "forward")] == [8, 8]
    assert [round(end - start, 9) for start, end in spans(offloaded, "d0-1", "backward")] == [9, 9]
    assert offloaded.closed_form_step_time_s == pytest.approx(offloaded.step_time_s)


@pytest.mark.parametrize(("kind", "layers_at_once"), [("gpu", 2), ("cpu", 0)])
def test_offloading_frees_what_waits_for_its_backward_pass(kind: str, layers_at_once: int) -> None:
    problem = with_host_link(measured(num_micro_batches=6, schedule="gpipe"), 1e9, kind=kind)
    plan = groups_plan(problem, {"s0": (0, 1, [0])})
    away = plan.changed(stages=(plan.stages[0].changed(offloaded_layers=(0, 1)),))
    kept, offloaded = (estimate(problem, each).memory_bytes["d0-0"] for each in (plan, away))
    # The last gradients come when the activations of one layer of one micro-batch have gone.
    assert kept == 8 * 200 + 6 * 160 - 80
    # A GPU has what is computed and what is on its way; a CPU copies each tensor at once.
    assert offloaded == 8 * 200 + layers_at_once * 80


def test_the_largest_share_of_a_group_decides_its_times_and_each_device_holds_its_own() -> None:
    problem = measured(degrees=(1,))
    plan = groups_plan(problem, {"s0": (0, 1, [0, 1])})
    uneven = plan.changed(stages=(plan.stages[0].changed(tensor_shares=(0.25, 0.75)),))
    found = simulate(problem, uneven)
    large = problem.at_degree(2, 0.75)
    ((start_s, end_s), *_) = spans(found, "d0-0", "forward")
    assert end_s - start_s == pytest.approx(large.tables.forward_s[:, 0].sum())
    assert problem.at_degree(2).tables.forward_s[0, 0] < large.tables.forward_s[0, 0]
    assert large.tables.forward_s[0, 0] < 4.0 + 2 * 2 * (0.5 + 4 / 4)
    assert found.memory_bytes == {
        "d0-0": 8 * 2 * (20 + 20) + 2 * (20 + 15),
        "d0-1": 8 * 2 * (20 + 60) + 2 * (20 + 45),
    }
    even = plan.changed(stages=(plan.stages[0].changed(tensor_shares=(0.5, 0.5)),))
    assert simulate(problem, even) == simulate(problem, plan)


def test_each_device_of_an_uneven_group_copies_its_own_gradients() -> None:
    problem = measured(degrees=(1,))
    routes: dict[tuple[str, ...], Sequence[int]] = {("s0",): (0,), ("s1",): (1,)}
    plan = groups_plan(problem, {"s0": (0, 1, [0, 1]), "s1": (0, 1, [2, 3])}, routes)
    uneven = plan.changed(
        stages=tuple(stage.changed(tensor_shares=(0.25, 0.75)) for stage in plan.stages)
    )
    schedule = build_schedule(problem, uneven)
    for rank, numbers in ((0, 2 * (20 + 20)), (1, 2 * (20 + 60)), (None, 2 * (20 + 60))):
        copies = reduce_copies(problem, uneven, schedule, rank)
        assert [copy.num_bytes for copy in copies] == [4 * numbers] * 2
    even_copies = reduce_copies(problem, plan, build_schedule(problem, plan), 1)
    assert {copy.num_bytes for copy in even_copies} == {4 * 2 * (20 + 40)}


def test_unlike_devices_of_a_group_wait_for_the_slowest_at_every_layer() -> None:
    base = measured(degrees=(1,), speeds=(1, 3), counts=(4, 4))
    (own,) = base.profile.measurements
    slow = own.changed(device_type="class1", forward_s=(12.0, 6.0), optimizer_s=(5.0, 5.0))
    problem = replace(base, profile=base.profile.changed(measurements=(own, slow)))
    plan = groups_plan(problem, {"s0": (0, 1, [0, 1])})
    even = plan.changed(stages=(plan.stages[0].changed(devices=("d0-0", "d1-0")),))
    uneven = even.changed(stages=(even.stages[0].changed(tensor_shares=(0.75, 0.25)),))
    large, small = problem.at_degree(2, 0.75).tables, problem.at_degree(2, 0.25).tables
    # The first layer is three times as long on the slow device, the second one as long on both.
    slowest_s = small.forward_s[0, 1], large.forward_s[1, 0]
    assert slowest_s[0] > large.forward_s[0, 0]
    assert slowest_s[1] > small.forward_s[1, 1]
    found = simulate(problem, uneven)
    ((start_s, end_s), *_) = spans(found, "d0-0", "forward")
    assert end_s - start_s == pytest.approx(sum(slowest_s))
    assert spans(found, "d1-0", "forward")[0] == (start_s, end_s)
    ((start_s, end_s),) = spans(found, "d1-0", "step")
    assert end_s - start_s == pytest.approx(small.optimizer_s[:, 1].sum())
    assert found.closed_form_step_time_s is None
    assert found.memory_bytes == {
        "d0-0": 8 * 2 * (20 + 60) + 2 * (20 + 45),
        "d1-0": 8 * 2 * (20 + 20) + 2 * (20 + 15),
    }
    assert "d0-0, d1-0 are unlike" in " ".join(found.notes)


def test_all_devices_of_a_group_share_the_cores_of_their_node() -> None:
    base = measured()
    host = HostTimes(slowdown_together=(1.0, 1.5, 2.0))
    nodes = [node.changed(host=host) for node in base.cluster.nodes]
    problem = replace(base, cluster=base.cluster.changed(nodes=nodes))
    found = simulate(problem, groups_plan(problem, {"s0": (0, 1, [0, 1])}))
    assert found.step_time_s == pytest.approx(1.5 * (2 * (2 + 3 + 4 + 4) + 2))


def test_stages_of_a_group_exchange_no_message() -> None:
    problem = measured(schedule="interleaved")
    plan = groups_plan(problem, {"s0": (0, 0, [0, 1]), "s1": (1, 1, [0, 1])})
    found = simulate(problem, plan)
    assert found.step_time_s == 2 * (2 + 3 + 4 + 4) + 2
    assert not spans(found, "d0-0", "send")


def test_a_stage_on_a_group_of_one_is_a_stage() -> None:
    stage = Stage(name="s", first_layer=0, last_layer=1, devices=("a",), tensor_shares=(1.0,))
    assert stage.uneven_shares == ()
    problem = measured()
    assert problem.for_stage(stage) is problem


@pytest.mark.parametrize("whole", [(0,), (1,), (0, 1)])
def test_layers_that_a_group_keeps_whole_take_what_they_take_on_one_device(
    whole: tuple[int, ...],
) -> None:
    problem = measured([1])
    (stage,) = groups_plan(problem, {"s": (0, 1, [0, 1])}).stages
    own = problem.for_stage(stage.changed(whole_layers=whole)).tables
    for layer in range(2):
        expected = (problem if layer in whole else problem.at_degree(2)).tables
        for field in ("forward_s", "backward_s", "optimizer_s", "state_bytes", "gradient_bytes"):
            found = getattr(own, field)[layer]
            assert found == pytest.approx(getattr(expected, field)[layer]), field


def test_what_was_measured_of_groups_says_nothing_of_layers_that_are_whole_there() -> None:
    problem = measured([1, 2])
    (stage,) = groups_plan(problem, {"s": (0, 1, [0, 1])}).stages
    kept = problem.for_stage(stage.changed(whole_layers=(0,))).tables
    assert kept.forward_s[0, 0] == pytest.approx(4.0)
    assert kept.forward_s[1, 0] == pytest.approx(measured([1]).at_degree(2).tables.forward_s[1, 0])


def test_a_group_that_keeps_all_layers_whole_takes_as_long_as_one_device() -> None:
    problem = measured([1])
    plan = groups_plan(problem, {"s": (0, 1, [0, 1])})
    whole = plan.changed(stages=(plan.stages[0].changed(whole_layers=(0, 1)),))
    alone = groups_plan(problem, {"s": (0, 1, [0])})
    found, expected = simulate(problem, whole), simulate(problem, alone)
    assert found.step_time_s == pytest.approx(expected.step_time_s)
    assert set(found.memory_bytes.values()) == set(expected.memory_bytes.values())


def test_gradients_of_whole_layers_are_summed_whole() -> None:
    problem = measured([1])
    plan = groups_plan(
        problem,
        {"s": (0, 1, [0, 1]), "t": (0, 1, [2, 3])},
        {("s",): [0], ("t",): [1]},
    )
    stages = tuple(stage.changed(whole_layers=(1,)) for stage in plan.stages)
    (before,), (bucket,) = (reduce_buckets(problem, p) for p in (plan, plan.changed(stages=stages)))
    gradients, split = problem.gradient_bytes, problem.at_degree(2).gradient_bytes
    assert reduce_bytes(problem, before) == pytest.approx(split.sum())
    assert reduce_bytes(problem, bucket) == pytest.approx(split[0] + gradients[1])


def test_a_tie_is_kept_whole_at_both_ends() -> None:
    problem = measured([1])
    first, last = problem.profile.layers
    tied = problem.profile.changed(
        layers=(first, last.changed(tied_to=first.name, tied_parameters=10))
    )
    problem = replace(problem, profile=tied)
    plan = groups_plan(problem, {"s": (0, 1, [0, 1])})
    kept = plan.changed(stages=(plan.stages[0].changed(whole_layers=(1,)),))
    assert can_run(problem, plan)
    (note,) = [
        note for note in estimate(problem, kept).notes if "cannot" in note or "not run" in note
    ]
    assert note == (
        f"stage 's' keeps {last.name} whole (whole_layers: 1) and splits {first.name}, which has "
        "the same parameters; add 0 to whole_layers; the plan can be simulated, and not run"
    )
