"""Micro-batches of unlike sizes, of which any may be the last to come back: no plan is below."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s
from heterps_envs.step_bounds.executable import least_executable_s
from tests.envs.small_problems import chain_problem, plan_of
from tests.envs.step_bounds.test_all_plans import all_plans
from tests.envs.step_bounds.whole_plans.staged_plans import may_take, spans_of

COUNTS = ((1, 1), (2, 1), (1, 2))
SCHEDULES = ("1f1b", "gpipe", "zero-bubble")
ROUNDING = 1e-9
MOST_PLANS, TRIED = 4000, 40


def drawn(rng: np.random.Generator) -> Problem:
    """Few layers on a few devices; the last micro-batch is smaller, or any of them."""
    num_layers, size = int(rng.integers(1, 4)), int(rng.integers(2, 9))
    sizes = [size] * int(rng.integers(1, 3)) + rng.integers(1, size + 1, 1).tolist()

    def some(low: float, high: float) -> list[float]:
        return [float(value) for value in rng.uniform(low, high, num_layers)]

    problem = chain_problem(
        some(0.1, 1),
        some(0.1, 1),
        samples=sum(sizes),
        micro_batch_size=size,
        counts=COUNTS[rng.integers(len(COUNTS))],
        speeds=(1.0, float(rng.uniform(1, 2))),
        parameters=rng.integers(1, 20, num_layers).tolist(),
        activation_bytes=some(0, 20),
        optimizer_s=some(0, 0.5),
        output_bytes=some(0, 30),
        schedule=SCHEDULES[rng.integers(len(SCHEDULES))],
    )
    problem = replace(problem, strategy=Strategy(shard_state="auto"))
    if rng.integers(2):
        return problem
    unequal = tuple(int(each) for each in rng.permutation(sizes))
    return replace(problem, job=problem.job.changed(unequal_micro_batch_sizes=unequal))


def some_plans(problem: Problem, rng: np.random.Generator) -> list[Plan]:
    """Plans with any sizes on any route, and state of any layers divided."""
    plans = list(islice(all_plans(problem), MOST_PLANS))
    found = list[Plan]()
    for index in rng.permutation(len(plans))[:TRIED]:
        plan, order = plans[index], rng.permutation(problem.job.num_micro_batches)
        pipelines = tuple(
            each.changed_unchecked(micro_batches=tuple(sorted(order[list(each.micro_batches)])))
            for each in plan.pipelines
        )
        is_shared = len(plan.stages) > 1 and len(plan.pipelines) > 1
        sharded = tuple(
            LayerRange(first_layer=layer, last_layer=layer)
            for layer in range(problem.profile.num_layers)
            if is_shared and rng.integers(2)
        )
        found.append(
            plan.changed_unchecked(
                pipelines=pipelines,
                overlaps_reduce=bool(rng.integers(2)),
                sharded_state=sharded,
            )
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_no_plan_is_below_the_bound_and_its_stages_survive_its_time(first: int) -> None:
    for seed in range(first, first + 10):
        rng = np.random.default_rng(seed)
        problem = drawn(rng)
        bound_s = least_executable_s(problem)
        for plan in some_plans(problem, rng):
            step_time_s = feasible_step_time_s(problem, plan) * (1 + ROUNDING)
            assert bound_s <= step_time_s, seed
            assert may_take(problem, spans_of(problem, plan), step_time_s), seed


@pytest.mark.parametrize("samples", [5, 7, 9])
def test_one_device_with_a_smaller_last_micro_batch_takes_what_the_bound_says(
    samples: int,
) -> None:
    """Passes are 12 s for 4 samples, and the optimizer step is 1 s."""
    problem = chain_problem(
        [1.0, 3.0], [2.0, 6.0], samples=samples, micro_batch_size=4, counts=(1,),
        optimizer_s=[0.5, 0.5],
    )  # fmt: skip
    plan = plan_of(problem, {"a": (0, 1, "d0")}, {("a",): range(problem.job.num_micro_batches)})
    step_time_s = feasible_step_time_s(problem, plan)
    assert step_time_s == pytest.approx(12 * samples / 4 + 1)
    assert least_executable_s(problem) == pytest.approx(step_time_s, rel=2e-3)
    assert least_executable_s(problem) <= step_time_s * (1 + ROUNDING)
