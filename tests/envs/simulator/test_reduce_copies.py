"""Copies of gradients: where the run makes them, and how large they are."""

from __future__ import annotations

import pytest

from heterps_configs.documents.plan import Plan
from heterps_envs.layer_costs.memory_rule import LARGE_GRADIENT_BYTES, REDUCE_COPY_BYTES
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import REDUCE
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.memory_timeline import memory_timeline
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.reduce_copies import reduce_copies
from tests.envs.small_problems import chain_problem, plan_of


def two_replicas(
    parameters: list[int],
    overlaps_reduce: bool = True,
    schedule: str = "1f1b",
    sizes: tuple[int, ...] = (),
) -> tuple[Problem, Plan]:
    """All layers on two devices; `sizes` are of the parameters of each layer."""
    problem = chain_problem(
        [1.0] * len(parameters),
        [2.0] * len(parameters),
        num_micro_batches=2,
        parameters=parameters,
        activation_bytes=[100.0] * len(parameters),
        schedule=schedule,
    )
    layers = [layer.changed(parameter_sizes=sizes) for layer in problem.profile.layers]
    profile = problem.profile.changed(layers=tuple(layers))
    job = problem.job.changed(overlaps_reduce=overlaps_reduce)
    problem = Problem(profile, problem.cluster, job)
    last = len(parameters) - 1
    stages = {"a": (0, last, "d0-0"), "b": (0, last, "d0-1")}
    return problem, plan_of(problem, stages, {("a",): [0], ("b",): [1]})


def test_a_copy_is_made_when_the_last_gradient_of_its_bucket_comes() -> None:
    problem, plan = two_replicas([2**20, 2**20, 10])
    schedule = build_schedule(problem, plan)
    copies = reduce_copies(problem, plan, schedule)
    # Of three layers from the back, the second completes the first bucket.
    assert [copy.layers_done for copy in copies] == [2, 3, 2, 3]
    assert all(schedule.kind[copy.action] != REDUCE for copy in copies)


@pytest.mark.parametrize(("overlaps_reduce", "schedule"), [(False, "1f1b"), (True, "zero-bubble")])
def test_other_copies_are_made_by_their_own_action(overlaps_reduce: bool, schedule: str) -> None:
    problem, plan = two_replicas([2**20, 2**20, 10], overlaps_reduce, schedule)
    lists = build_schedule(problem, plan)
    for copy in reduce_copies(problem, plan, lists):
        assert lists.kind[copy.action] == REDUCE
        assert copy.layers_done == 0


def test_large_gradients_are_not_copied_and_small_ones_piece_by_piece() -> None:
    large = LARGE_GRADIENT_BYTES // 4
    problem, plan = two_replicas([large + 10] * 3, sizes=(large, 10))
    found = {copy.num_bytes for copy in reduce_copies(problem, plan, build_schedule(problem, plan))}
    assert found == {40.0}
    problem, plan = two_replicas([8 * (large - 1)], sizes=(large - 1,) * 8)
    found = {copy.num_bytes for copy in reduce_copies(problem, plan, build_schedule(problem, plan))}
    assert found == {float(REDUCE_COPY_BYTES)}


def test_a_copy_counts_beside_what_is_there_at_its_moment() -> None:
    """By hand: weights of 160 bytes, gradients of as many, of three layers that keep 100 each."""
    problem, plan = two_replicas([10, 10, 20])
    # One bucket: when the pass is over with all layers, only gradients and their copy are there.
    timeline = memory_timeline(PreparedPlan(problem, plan))
    assert timeline.peak_bytes.tolist() == [160 + max(160 + 160, 300 + 80)] * 2
