"""Workloads: seconds, bytes and neighbours of stages along the routes of a plan."""

from __future__ import annotations

from dataclasses import replace

from heterps_configs.documents.stage import Stage
from heterps_envs.schedule.workload import own_share, workload
from heterps_envs.simulator.simulate import simulate
from tests.envs.small_problems import chain_problem, plan_of


def test_a_stage_shared_by_routes_of_unequal_depth_has_other_neighbours_on_each() -> None:
    problem = chain_problem(
        [1, 2, 3],
        [4, 5, 6],
        speeds=(1, 2),
        counts=(3, 1),
        samples=5,
        micro_batch_size=2,
        output_bytes=[7.0, 8.0, 9.0],
    )
    plan = plan_of(
        problem,
        {
            "long0": (0, 0, "d0-0"),
            "long1": (1, 1, "d0-1"),
            "short": (0, 1, "d1"),
            "end": (2, 2, "d0-2"),
        },
        {("long0", "long1", "end"): [0, 2], ("short", "end"): [1]},
    )
    work = workload(problem, plan)
    assert work.source("forward", "end", 0) == "long1"
    assert work.source("forward", "end", 1) == "short"
    assert work.target("backward", "end", 2) == "long1"
    assert work.target("forward", "end", 1) is work.source("backward", "end", 1) is None
    assert work.source("backward", "long0", 0) == "long1"
    # The last micro-batch has one sample of two; bytes are those of the cut that is crossed.
    assert work.seconds("forward", "short", 1) == 2 * (1 + 2)
    assert work.seconds("backward", "long1", 2) == 5 / 2
    assert work.message_bytes("forward", "short", 1) == 16
    assert work.message_bytes("backward", "end", 2) == 8
    assert work.message_bytes("backward", "long1", 0) == 14


def test_micro_batches_of_unequal_size_are_charged_their_samples() -> None:
    equal = chain_problem([1, 2], [3, 4], speeds=(1,), counts=(1,), samples=12, micro_batch_size=4)
    job = equal.job.changed(unequal_micro_batch_sizes=(1, 4, 2, 3, 2))
    problem = replace(equal, job=job)
    plan = plan_of(problem, {"all": (0, 1, "d0")}, {("all",): range(5)})
    work = workload(problem, plan)
    assert work.shares == (0.25, 1.0, 0.5, 0.75, 0.5)
    assert work.seconds("backward", "all", 3) == 0.75 * 7
    # As many samples take as long, however they are cut.
    assert simulate(problem, plan).step_time_s == 10 * 12 / 4


def test_the_quicker_device_of_a_group_takes_a_part_of_what_the_group_takes() -> None:
    problem = chain_problem([1, 2], [3, 4], speeds=(1, 4), counts=(2, 1))
    even = Stage(name="s", first_layer=0, last_layer=1, devices=("d0-0", "d1"))
    assert own_share(problem, even, "d0-0") == 0.25
    assert own_share(problem, even, "d1") == 1
    alike = even.changed(devices=("d0-0", "d0-1"))
    assert own_share(problem, alike, "d0-0") == 1


def test_tied_layers_are_listed_by_the_owner_of_the_parameters() -> None:
    problem = chain_problem([1] * 5, [1] * 5, tied_to={3: 1, 4: 1})
    assert problem.profile.tied_layers == {1: (3, 4)}


def test_a_stage_may_take_less_than_its_layers_but_never_less_than_nothing() -> None:
    problem = chain_problem([1.0, 2.0], [4.0, 5.0])
    entries = tuple(
        entry.changed(
            stage_forward_s=(-0.5, -9.0),
            stage_backward_s=(-0.5, -9.0),
            weight_gradient_s=(1.5, 2.5),
        )
        for entry in problem.profile.measurements
    )
    profile = problem.profile.changed(measurements=entries)
    plan = plan_of(problem, {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-1")}, {("a", "b"): range(8)})
    found = workload(replace(problem, profile=profile), plan).stages
    assert (found["a"].forward_s, found["a"].backward_s) == (0.5, 3.5)
    # What is put off is a part of the backward pass.
    assert (found["b"].forward_s, found["b"].backward_s) == (0.0, 2.5)
    assert found["b"].seconds("backward-input") == 0.0
