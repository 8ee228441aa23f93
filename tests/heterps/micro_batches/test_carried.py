"""The best plans with other sizes of micro-batches."""

from __future__ import annotations

from dataclasses import replace

from heterps.micro_batches.carried import carried, with_carried, with_searched
from heterps.micro_batches.one_size import finished_result, place_one_size
from heterps.micro_batches.outlooks import cost_of
from heterps.micro_batches.sizes import open_sizes, with_size
from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps_agents.asymmetric.weave import Lane, Part, Weave, plan_of_weave
from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_envs.simulator.simulate import estimate


def test_stages_stay_and_a_size_has_the_better_of_its_plans() -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16, strategy=OPEN)
    asked = [with_size(problem, size) for size in open_sizes(problem)]
    of_size = {each.job.micro_batch_size: each for each in asked}
    good = place_one_size(of_size[4], planner_named("ppo"), Budget(evaluations=2_000))
    behind = carried(good, of_size[2])
    assert behind is not None
    assert behind.job == of_size[2].job
    assert {(s.first_layer, s.last_layer) for s in behind.stages} == {
        (s.first_layer, s.last_layer) for s in good.plan.stages
    }
    slow = finished_result(
        of_size[2],
        planner_named("even").plan(of_size[2], Budget()),
        AutoPlanner(),
        Budget(),
    )
    assert slow is not None
    found = with_carried([good, slow], asked, AutoPlanner(), Budget())
    best = {each.plan.job.micro_batch_size: each for each in found}
    assert best[4] is good
    assert cost_of(best[2]) <= cost_of(slow)
    assert len(best) == len(found) > 2
    for size, result in best.items():
        assert estimate(of_size[size], result.plan).feasible


def test_a_size_that_is_the_best_only_then_is_searched() -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16, strategy=OPEN)
    asked = [with_size(problem, size) for size in open_sizes(problem)]
    planner = AutoPlanner(is_patient=False)
    known = place_one_size(asked[0], planner_named("greedy"), Budget())
    found = with_searched([known], asked, planner, Budget())
    best = min(found, key=cost_of)
    size = best.plan.job.micro_batch_size
    assert size != known.plan.job.micro_batch_size
    (own,) = (each for each in asked if each.job.micro_batch_size == size)
    assert cost_of(best) <= cost_of(place_one_size(own, planner, Budget()))
    only_carried = min(with_carried([known], asked, planner, Budget()), key=cost_of)
    assert cost_of(best) < cost_of(only_carried)


def test_nothing_is_carried_without_time() -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16, strategy=OPEN)
    asked = [with_size(problem, size) for size in open_sizes(problem)]
    result = place_one_size(asked[1], planner_named("greedy"), Budget())
    assert with_carried([result], asked, AutoPlanner(), Budget(seconds=1e-9)) == [result]


def test_lanes_keep_their_shares() -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16, strategy=OPEN)
    few, many = (with_size(problem, size) for size in (4, 2))
    chain = place_one_size(few, planner_named("greedy"), Budget())
    groups = [(device.name,) for device in problem.cluster.devices[:2]]
    layers = problem.profile.num_layers
    lanes = tuple(
        Lane(share, (Part(layers, (group,), "keep"),))
        for share, group in zip((3, 1), groups, strict=True)
    )
    plan = plan_of_weave(Weave((lanes,)), chain.plan)
    found = carried(replace(chain, plan=plan), many)
    assert found is not None
    assert sorted(len(pipeline.micro_batches) for pipeline in found.pipelines) == [2, 6]
