"""The formula of lanes beside the simulator: near it, for chains, pipelines and mixed blocks."""

from __future__ import annotations

import math
import statistics
from itertools import pairwise

import pytest

from benchmarks.planners.asymmetric import all_plans, small_problem
from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.judged import Judge
from heterps_agents.asymmetric.weave import Lane, Part, Weave, plan_of_weave, weave_of_plan
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulated_step_time_s
from tests.uneven_problems import uneven_problem


def over_simulated(problem: Problem, plan: Plan, estimates: Estimates) -> float:
    weave = weave_of_plan(plan)
    assert weave is not None
    return estimates.step_s(weave) / simulated_step_time_s(problem, plan)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_all_plans_of_a_small_problem_are_near_their_simulated_step(schedule: str) -> None:
    problem = small_problem(4, (1, 2), schedule=schedule, memory=5.0, global_batch_size=6)
    estimates = Estimates(problem)
    found = sorted(over_simulated(problem, plan, estimates) for plan in all_plans(problem))
    assert 0.95 < statistics.median(found) < 1.05
    # A tenth of them are far off: hardly filled pipelines, and sums that wait for one another.
    assert found[len(found) // 20] > 0.8
    assert found[-len(found) // 20] < 1.25


def test_memory_is_a_limit_and_a_little_more_of_it_is_none() -> None:
    problem = small_problem(4, (1, 2), memory=0.7)
    whole = Weave(((Lane(8, (Part(4, (("d0",),)),)),),))
    short, roomy = Estimates(problem), Estimates(problem, 3.0)
    assert math.isinf(short.step_s(whole))
    assert short.lacked_room
    assert math.isfinite(roomy.step_s(whole))
    assert not roomy.lacked_room


def test_more_micro_batches_on_the_slow_lane_take_longer() -> None:
    problem = small_problem(4, (1, 1), memory=5.0)
    estimates = Estimates(problem)

    def step_s(fast: int) -> float:
        lanes = Lane(fast, (Part(4, (("d0",),)),)), Lane(8 - fast, (Part(4, (("d1",),)),))
        return estimates.step_s(Weave((lanes,)))

    assert min(range(1, 8), key=step_s) in (5, 6)


def test_sharded_state_makes_room_and_shortens_the_optimizer_step() -> None:
    problem = uneven_problem(memory=5.0)
    lanes = tuple(Lane(8, (Part(10, ((f"fast-{index}",),)),)) for index in range(2))
    whole, divided = Weave((lanes,)), Weave((lanes,), frozenset(range(10)))
    estimates = Estimates(problem)
    assert estimates.step_s(divided) < estimates.step_s(whole)
    tight = Estimates(problem, 0.8)
    assert math.isfinite(tight.step_s(divided))


def test_an_even_cut_gives_the_slower_device_less() -> None:
    problem = small_problem(5, (1, 1), memory=5.0)
    estimates, part = Estimates(problem), Part(5, (("d0",),))
    behind = estimates.even_cut(0, part, ("d1",), is_front=False)
    front = estimates.even_cut(0, part, ("d1",), is_front=True)
    assert behind is not None
    assert front is not None
    assert front < behind
    assert estimates.even_cut(4, part, ("d1",), is_front=True) is None


@pytest.mark.parametrize("seed", range(8))
def test_no_other_cut_between_two_devices_is_more_even(seed: int) -> None:
    problem = small_problem(7, (1, 1), memory=5.0, seed=seed)
    compute_s = problem.tables.compute_s
    front, behind = (problem.class_of[name] for name in ("d1", "d0"))

    def slower(cut: int) -> float:
        return max(float(compute_s[1:cut, front].sum()), float(compute_s[cut:, behind].sum()))

    part = Part(7, (("d0",),))
    cut = Estimates(problem).even_cut(1, part, ("d1",), is_front=True)
    assert cut is not None
    assert slower(cut) == pytest.approx(min(map(slower, range(2, 7))))


def test_the_plan_of_a_mixed_block_is_near_its_simulated_step() -> None:
    problem = uneven_problem(memory=5.0)
    weave = Weave(
        (
            (Lane(16, (Part(2, (("middle-0",),)),)),),
            (
                Lane(12, (Part(10, (("fast-0",),)),)),
                Lane(4, (Part(6, (("small-0",),)), Part(10, (("small-1",),)))),
            ),
        )
    )
    plan = plan_of_weave(weave, next(all_plans(problem)))
    # It counts on more in flight than the rule, as the judge does.
    judged = Judge(problem, Budget()).judged(plan)
    assert Estimates(problem).step_s(weave) == pytest.approx(judged.cost, rel=0.1)


@pytest.mark.parametrize("seed", range(8))
def test_parts_are_cut_so_that_the_slowest_takes_least(seed: int) -> None:
    problem = small_problem(7, (1, 1, 1), memory=5.0, seed=seed)
    estimates = Estimates(problem)
    order = ("d1", "d0", "d2") if seed % 2 else ("d2", "d0", "d1")
    compute_s, kinds = problem.tables.compute_s, [problem.class_of[name] for name in order]

    def slowest(stops: tuple[int, ...]) -> float:
        edges = pairwise((1, *stops))
        return max(
            float(compute_s[a:b, kind].sum()) for (a, b), kind in zip(edges, kinds, strict=True)
        )

    parts = [Part(stop, ((name,),)) for stop, name in zip((2, 3, 7), order, strict=True)]
    found = tuple(part.stop for part in estimates.evenly_cut(parts, 1))
    best = min(((a, b, 7) for a in range(2, 6) for b in range(a + 1, 7)), key=slowest)
    assert found[-1] == 7
    assert slowest(found) <= 1.001 * slowest(best)
