"""Blocks of lanes and plans: the same plan comes back, and each move is one that can run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.planners.asymmetric import all_plans, small_problem
from heterps_agents.asymmetric.candidates import groups_of, memories_of
from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.moves import Moves
from heterps_agents.asymmetric.weave import (
    Lane,
    Part,
    Weave,
    plan_of_weave,
    weave_of_plan,
    with_micro_batches,
)
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import simulated_step_time_s
from tests.uneven_problems import uneven_problem


def chain(problem: Problem, *stages: PlacedStage) -> Plan:
    return bind(problem, stages, planner="test", seed=0)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return uneven_problem()


@pytest.fixture(scope="module")
def mixed(problem: Problem) -> Weave:
    """Two layers in front on one device; behind them a fast lane, and a slow one of two parts."""
    return Weave(
        (
            (Lane(16, (Part(2, (("middle-0",),)),)),),
            (
                Lane(10, (Part(10, (("fast-0",),)),)),
                Lane(6, (Part(6, (("small-0",),)), Part(10, (("small-1",),)))),
            ),
        )
    )


@pytest.mark.parametrize("replicas", [(1, 1), (2, 1), (2, 2), (1, 3), (2, 3)])
def test_a_chain_comes_back_with_the_same_step(problem: Problem, replicas: tuple[int, int]) -> None:
    plan = chain(problem, PlacedStage(0, 3, 0, replicas[0]), PlacedStage(4, 9, 1, replicas[1]))
    weave = weave_of_plan(plan)
    assert weave is not None
    # Replicas that are as many go on in lanes of their own.
    assert len(weave.blocks) == (1 if replicas == (2, 2) else 2)
    back = plan_of_weave(weave, plan)
    assert simulated_step_time_s(problem, back) == pytest.approx(plan.predicted_step_time_s)
    assert {(s.layers, s.devices) for s in back.stages} == {
        (s.layers, s.devices) for s in plan.stages
    }


def test_pipelines_side_by_side_are_one_block_and_come_back() -> None:
    problem = small_problem(3, (1, 2), global_batch_size=4)
    for plan in all_plans(problem):
        weave = weave_of_plan(plan)
        assert weave is not None
        back = plan_of_weave(weave, plan)
        again = weave_of_plan(back)
        assert again is not None
        assert [*map(set, again.blocks)] == [*map(set, weave.blocks)]
        assert simulated_step_time_s(problem, back) == pytest.approx(
            simulated_step_time_s(problem, plan)
        )


def test_a_block_of_unlike_lanes_is_a_plan_that_is_checked(problem: Problem, mixed: Weave) -> None:
    like = chain(problem, PlacedStage(0, 9, 0))
    plan = plan_of_weave(mixed, like).changed()
    assert weave_of_plan(plan) == mixed
    shares = {len(pipeline.stages): len(pipeline.micro_batches) for pipeline in plan.pipelines}
    assert shares == {2: 10, 3: 6}
    # Taken in turn: of any 8 micro-batches in a row the fast lane has 5.
    fast = {m for p in plan.pipelines if len(p.stages) == 2 for m in p.micro_batches}
    assert all(4 <= len(fast.intersection(range(m, m + 8))) <= 6 for m in range(9))


def test_replicas_in_a_lane_take_turns(problem: Problem) -> None:
    weave = Weave(((Lane(16, (Part(4, (("fast-0",), ("fast-1",))), Part(10, (("middle-0",),)))),),))
    plan = plan_of_weave(weave, chain(problem, PlacedStage(0, 9, 0))).changed()
    assert sorted(len(pipeline.micro_batches) for pipeline in plan.pipelines) == [8, 8]


def test_sharded_layers_and_computing_again_are_kept() -> None:
    problem = uneven_problem()
    plan = chain(
        problem,
        PlacedStage(0, 3, 0, 2, shards_state=True),
        PlacedStage(4, 9, 1, 3, recompute=True),
    )
    weave = weave_of_plan(plan)
    assert weave is not None
    assert weave.sharded == frozenset(range(4))
    back = plan_of_weave(weave, plan)
    assert back.sharded_layers == plan.sharded_layers
    assert all(
        len(stage.recompute_layers) == (6 if stage.first_layer else 0) for stage in back.stages
    )


def test_lanes_that_share_a_stage_are_no_weave(problem: Problem) -> None:
    plan = chain(problem, PlacedStage(0, 3, 0), PlacedStage(4, 9, 1))
    first, second = plan.stages
    inner = [
        second.changed(name="a", first_layer=4, last_layer=6, devices=("middle-1",)),
        second.changed(name="b", first_layer=7, last_layer=9),
        second.changed(name="c", first_layer=4, last_layer=5, devices=("middle-2",)),
        second.changed(name="d", first_layer=6, last_layer=6, devices=("small-0",)),
    ]
    routes = [("s0", "a", "b"), ("s0", "c", "d", "b")]
    (pipeline,) = plan.pipelines
    shared = plan.changed(
        stages=(first, *inner),
        pipelines=tuple(
            pipeline.changed(stages=route, micro_batches=tuple(range(8 * at, 8 * at + 8)))
            for at, route in enumerate(routes)
        ),
    )
    # The border in front of b is one, and b a block of its own.
    weave = weave_of_plan(shared)
    assert weave is not None
    assert [len(block) for block in weave.blocks] == [1, 2, 1]
    partly = plan.changed(stages=(first.changed(recompute_layers=(1,)), second))
    assert weave_of_plan(partly) is None


@pytest.mark.parametrize("start", ["chain", "mixed"])
def test_every_move_is_a_plan_of_all_layers_and_micro_batches(
    problem: Problem, mixed: Weave, start: str
) -> None:
    like = chain(problem, PlacedStage(0, 3, 0, 2), PlacedStage(4, 9, 1, 3))
    weave = weave_of_plan(like) if start == "chain" else mixed
    assert weave is not None
    moves = Moves(Estimates(problem), groups_of(problem, like), ["keep", "recompute"])
    found = {*moves.cuts(weave), *moves.changes(weave)}
    assert len(found) > 20
    for changed in found:
        plan = plan_of_weave(changed, like).changed()
        assert len(set(plan.devices)) == len(plan.stages)
        assert all(lane.share >= 1 for block in changed.blocks for lane in block)
    num_lanes = {sum(map(len, changed.blocks)) for changed in found}
    assert min(num_lanes) < sum(map(len, weave.blocks)) < max(num_lanes)


def test_groups_and_memories_are_those_that_a_strategy_allows() -> None:
    plain = uneven_problem()
    plan = chain(plain, PlacedStage(0, 3, 0, degree=2), PlacedStage(4, 9, 1, 3))

    def allowing(**fields: object) -> Problem:
        return replace(plain, strategy=Strategy.from_mapping(fields))

    open_ = allowing(tensor_parallel=(), recompute="auto")
    assert {len(group) for group in groups_of(open_, plan)} == {1, 2}
    assert memories_of(open_) == ["keep", "recompute"]
    always = allowing(tensor_parallel=(2,), recompute="full")
    assert {len(group) for group in groups_of(always, plan)} == {2}
    assert memories_of(always) == ["recompute"]
    assert {len(group) for group in groups_of(plain, plan)} == {1}
    assert memories_of(plain) == ["keep"]


def test_replicas_that_no_micro_batch_reaches_are_left_out(problem: Problem) -> None:
    like = chain(problem, PlacedStage(0, 9, 0, 1))
    lonely = Lane(1, (Part(10, (("small-0",), ("small-1",))),))
    weave = Weave(((Lane(15, (Part(10, (("fast-0",),)),)), lonely),))
    plan = plan_of_weave(weave, like)
    assert [stage.devices[0] for stage in plan.stages] == ["fast-0", "small-0"]
    assert simulated_step_time_s(problem, plan) > 0


def test_shares_stay_as_nearly_as_can_be_with_other_micro_batches() -> None:
    lanes = tuple(
        Lane(share, (Part(4, ((name,),), "keep"),))
        for share, name in zip((5, 2, 1), "abc", strict=True)
    )

    def shares(total: int) -> list[int] | None:
        found = with_micro_batches(Weave((lanes,)), total)
        return found and [lane.share for lane in found.blocks[0]]

    assert shares(16) == [10, 4, 2]
    assert shares(4) == [2, 1, 1]
    assert shares(2) is None
