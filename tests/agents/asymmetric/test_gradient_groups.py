"""Layer-wise sums of gradients of unlike pipelines: who sums what, and what each holder waits for.

The groups are worked out by hand for two and three pipelines that are cut in unlike ways.
"""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

from benchmarks.planners.asymmetric import small_problem
from heterps_agents.asymmetric.weave import Lane, Part, Weave, plan_of_weave
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_envs.schedule.reduce_buckets import reduce_buckets
from heterps_envs.simulator.binding import plan_of


def plan_of_sizes(problem: Problem, *sizes: tuple[int, ...]) -> Plan:
    """Pipelines of so many layers on each device, in the order of the devices."""
    names, lanes = iter(problem.device_named), list[Lane]()
    share = problem.job.num_micro_batches // len(sizes)
    for own in sizes:
        stops = [sum(own[: index + 1]) for index in range(len(own))]
        lanes.append(Lane(share, tuple(Part(stop, ((next(names),),)) for stop in stops)))
    last = problem.profile.num_layers - 1
    alone = Stage(name="s", first_layer=0, last_layer=last, devices=("d0-0",))
    every = tuple(range(problem.job.num_micro_batches))
    like = plan_of(
        problem, (alone,), (Pipeline(stages=("s",), micro_batches=every),), planner="", seed=0
    )
    return plan_of_weave(Weave((tuple(lanes),)), like).changed()


def groups_by_layer(problem: Problem, plan: Plan) -> list[tuple[int, ...]]:
    order = {name: index for index, name in enumerate(problem.device_named)}
    found: dict[int, tuple[int, ...]] = {}
    for bucket in reduce_buckets(problem, plan):
        for layer in bucket.layers:
            found[layer] = tuple(order[name] for name in bucket.devices)
    return [found[layer] for layer in range(plan.num_layers)]


def test_two_pipelines_of_two_stages_sum_each_layer_over_its_two_holders() -> None:
    problem = small_problem(4, (4,), memory=5.0)
    plan = plan_of_sizes(problem, (2, 2), (1, 3))
    assert groups_by_layer(problem, plan) == [(0, 2), (0, 3), (1, 3), (1, 3)]


def test_thirty_two_layers_of_three_pipelines_have_six_groups() -> None:
    problem = small_problem(32, (9,), memory=5.0, global_batch_size=9)
    plan = plan_of_sizes(problem, (8, 8, 8, 8), (6, 10, 16), (20, 12))
    runs = [(group, len(list(own))) for group, own in groupby(groups_by_layer(problem, plan))]
    assert runs == [
        ((0, 4, 7), 6),
        ((0, 5, 7), 2),
        ((1, 5, 7), 8),
        ((2, 6, 7), 4),
        ((2, 6, 8), 4),
        ((3, 6, 8), 8),
    ]


@pytest.mark.parametrize("overlaps", [True, False])
def test_every_device_sums_in_one_global_order(overlaps: bool) -> None:
    """Else two devices would wait for each other: the order is that of the layers, back first."""
    problem = small_problem(12, (6,), memory=5.0, global_batch_size=6)
    plan = plan_of_sizes(problem, (4, 8), (6, 6), (9, 3)).changed(overlaps_reduce=overlaps)
    buckets = reduce_buckets(problem, plan)
    assert all(front.layers > behind.layers for front, behind in pairwise(buckets))
    assert sorted(layer for bucket in buckets for layer in bucket.layers) == list(range(12))
