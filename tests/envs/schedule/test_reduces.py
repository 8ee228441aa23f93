"""Gradient all-reduces: which layers share one, and where they stand in the action lists."""

from __future__ import annotations

from collections import defaultdict
from graphlib import TopologicalSorter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.schedule import reduce_buckets as buckets_module
from heterps_envs.schedule.actions import ReduceBucket
from heterps_envs.schedule.build import build_schedule
from heterps_envs.schedule.reduce_buckets import reduce_buckets, reduce_bytes
from heterps_envs.schedule.tied import adding_layers
from heterps_envs.simulator.binding import bind
from tests.envs.schedule.test_build import problems_with_any_plan
from tests.envs.small_problems import chain_problem, plan_of
from tests.envs.tied_problems import with_own


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
        for index, number in enumerate(own):
            followers[number].update(own[index + 1 :])
        for at, action in enumerate(actions):
            if action.kind != "reduce":
                continue
            bucket = schedule.buckets[action.bucket]
            adding = adding_layers(problem.profile, bucket.layers, bucket.own_only)
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


def test_what_a_tied_layer_has_of_its_own_is_summed_with_it_where_the_same_devices_have_it() -> (
    None
):
    tied = chain_problem(
        [1] * 3, [1] * 3, num_micro_batches=2, parameters=[5, 1, 5], tied_to={2: 0}
    )
    problem = with_own(tied, 2, 3)
    plan = bind(problem, [PlacedStage(0, 2, 0, 2)], planner="test", seed=0)
    (bucket,) = reduce_buckets(problem, plan)
    assert reduce_bytes(problem, bucket) == 4 * problem.profile.num_parameters == 4 * (5 + 1 + 3)


def test_else_the_devices_of_the_layer_itself_sum_it_with_their_other_layers() -> None:
    tied = chain_problem(
        [1] * 4, [1] * 4, num_micro_batches=2, parameters=[5, 1, 2, 5], tied_to={3: 0}
    )
    problem = with_own(tied, 3, 3)
    plan = bind(problem, [PlacedStage(0, 1, 0, 1), PlacedStage(2, 3, 0, 2)], planner="test", seed=0)
    shared, own = sorted(reduce_buckets(problem, plan), key=lambda each: -len(each.devices))
    assert (shared.layers, shared.tied_only, len(shared.devices)) == ((3,), (3,), 3)
    assert (own.layers, own.own_only, len(own.devices)) == ((2, 3), (3,), 2)
    assert reduce_bytes(problem, shared) == 4 * 5
    assert reduce_bytes(problem, own) == 4 * (2 + 3)
    # Only the shared ones wait for the layer in front.
    assert adding_layers(problem.profile, shared.layers, shared.own_only) == {0, 3}
    assert adding_layers(problem.profile, own.layers, own.own_only) == {2, 3}


@given(st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_all_gradients_that_several_devices_have_are_summed_once(seed: int, more: int) -> None:
    rng = np.random.default_rng(seed)
    num_layers = int(rng.integers(2, 6))
    owner, user = rng.choice(num_layers, 2, replace=False).tolist()
    sizes = rng.integers(1, 9, num_layers).tolist()
    sizes[owner] += sizes[user]
    problem = with_own(
        chain_problem(
            [1] * num_layers, [1] * num_layers, num_micro_batches=4, parameters=sizes,
            tied_to={user: owner},
        ),
        user,
        more,
    )  # fmt: skip
    cut = int(rng.integers(1, num_layers))
    first, last = rng.integers(1, 4, 2).tolist()
    placed = [PlacedStage(0, cut - 1, 0, first), PlacedStage(cut, num_layers - 1, 0, last)]
    plan = bind(problem, placed, planner="test", seed=0)
    summed = sum(reduce_bytes(problem, bucket) for bucket in reduce_buckets(problem, plan))
    own = [4 * layer.num_parameters for layer in problem.profile.layers]
    shared = 4 * sizes[user]
    own[owner] -= shared
    own[user] -= shared
    is_apart = (owner < cut) != (user < cut)
    front, back = sum(own[:cut]) * (first > 1), sum(own[cut:]) * (last > 1)
    holders = first + last if is_apart else first if owner < cut else last
    assert summed == front + back + shared * (holders > 1)
