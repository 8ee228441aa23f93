"""Gradient all-reduces: which layers share one, and where they stand in the action lists."""

from __future__ import annotations

from collections import defaultdict
from graphlib import TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.schedule import reduce_buckets as buckets_module
from heterps_envs.schedule.actions import ReduceBucket
from heterps_envs.schedule.build import build_schedule
from heterps_envs.schedule.reduce_buckets import reduce_buckets
from heterps_envs.schedule.tied import adding_layers
from heterps_envs.simulator.binding import bind
from tests.envs.schedule.test_build import problems_with_any_plan
from tests.envs.small_problems import chain_problem, plan_of


@given(problems_with_any_plan())
@settings(max_examples=40)
def test_all_reduces_stand_in_one_order_behind_all_that_adds_to_them(
    case: tuple[Problem, Plan],
) -> None:
    problem, plan = case
    with pytest.MonkeyPatch.context() as patch:  # a bucket for nearly each layer
        patch.setattr(buckets_module, "LEAST_BUCKET_BYTES", 1.0)
        patch.setattr(buckets_module, "BYTES_OVER_LATENCY", 0.0)
        schedule = build_schedule(problem, plan)
    followers: dict[int, set[int]] = defaultdict(set)
    for device, actions in schedule.actions.items():
        own = [action.bucket for action in actions if action.kind == "reduce"]
        expected = [i for i, bucket in enumerate(schedule.buckets) if device in bucket.devices]
        assert sorted(own) == expected
        for index, bucket in enumerate(own):
            followers[bucket].update(own[index + 1 :])
        for at, action in enumerate(actions):
            if action.kind != "reduce":
                continue
            adding = adding_layers(problem.profile, schedule.buckets[action.bucket].layers)
            later = [a.stage for a in actions[at:] if a.kind in ("backward", "backward-weight")]
            assert all(adding.isdisjoint(plan.stage(name).layers) for name in later)
    TopologicalSorter(followers).prepare()  # raises where there is no one order


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_buckets_split_by_layers_cover_each_once_and_keep_ties_together(
    sizes: list[int], data: st.DataObject
) -> None:
    n = len(sizes)
    tied = {}
    if n > 1:
        user = data.draw(st.integers(1, n - 1))
        owner = data.draw(st.integers(0, user - 1))
        sizes[owner] = max(sizes[owner], sizes[user])
        tied = {user: owner}
    problem = chain_problem(
        [1] * n, [1] * n, num_micro_batches=2, parameters=sizes, tied_to=tied, counts=(2,)
    )
    plan = bind(problem, [PlacedStage(0, n - 1, 0, 2)], planner="test", seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets_module, "LEAST_BUCKET_BYTES", 20.0)
        patch.setattr(buckets_module, "BYTES_OVER_LATENCY", 0.0)
        buckets = reduce_buckets(problem, plan)
    assert sorted(layer for bucket in buckets for layer in bucket.layers) == list(range(n))
    for user, owner in tied.items():
        assert any({user, owner} <= set(bucket.layers) for bucket in buckets)
    front = [min(bucket.layers) for bucket in buckets]
    assert front == sorted(front, reverse=True)
    gradient = problem.tables.gradient_bytes
    assert all(gradient[list(bucket.layers)].sum() >= 20 for bucket in buckets[:-1])


@pytest.mark.parametrize(
    ("num_layers", "pipelines", "expected"),
    [
        # Layer-wise gradient groups of AutoHet (arXiv 2512.20953), two replicas of four layers.
        (4, [[2, 2], [1, 3]], [((0, 2), 1), ((0, 3), 1), ((1, 3), 2)]),
        # The same for 32 layers and three replicas: 6 groups instead of 32.
        (
            32,
            [[8, 8, 8, 8], [6, 10, 16], [20, 12]],
            [
                ((0, 4, 7), 6),
                ((0, 5, 7), 2),
                ((1, 5, 7), 8),
                ((2, 6, 7), 4),
                ((2, 6, 8), 4),
                ((3, 6, 8), 8),
            ],
        ),
    ],
)
def test_gradients_are_reduced_by_equal_owners(
    num_layers: int, pipelines: list[list[int]], expected: list[tuple[tuple[int, ...], int]]
) -> None:
    problem = chain_problem(
        [1] * num_layers, [1] * num_layers, num_micro_batches=len(pipelines), counts=(9,)
    )
    stages: dict[str, tuple[int, int, str]] = {}
    routes: dict[tuple[str, ...], list[int]] = {}
    for index, sizes in enumerate(pipelines):
        first, route = 0, []
        for size in sizes:
            name = f"s{len(stages)}"
            stages[name] = (first, first + size - 1, f"d0-{len(stages)}")
            route.append(name)
            first += size
        routes[tuple(route)] = [index]
    buckets = reduce_buckets(problem, plan_of(problem, stages, routes))
    found = [
        (tuple(int(name.removeprefix("d0-")) for name in bucket.devices), len(bucket.layers))
        for bucket in reversed(buckets)
    ]
    assert found == expected


def test_tied_parameters_are_reduced_over_the_owners_of_both_layers() -> None:
    problem = chain_problem(
        [1] * 3, [1] * 3, num_micro_batches=2, parameters=[5, 1, 5], tied_to={2: 0}
    )
    plan = bind(problem, [PlacedStage(i, i, 0) for i in range(3)], planner="test", seed=0)
    assert reduce_buckets(problem, plan) == (ReduceBucket(("d0-0", "d0-2"), (2,)),)
    alone = bind(problem, [PlacedStage(0, 2, 0)], planner="test", seed=0)
    assert reduce_buckets(problem, alone) == ()
