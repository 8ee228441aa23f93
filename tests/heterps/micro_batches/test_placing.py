"""A given size of micro-batches: even plans count beside what searches find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from heterps.planning.place import place
from heterps_configs.documents.cluster import Link
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import minimised
from tests.envs.small_problems import chain_problem


def tight(seed: int, schedule: str) -> Problem:
    """A few layers on devices that hold a little more than they need together."""
    rng = np.random.default_rng(seed)
    layers, kinds = int(rng.integers(3, 9)), int(rng.integers(1, 4))
    counts, forward_s = rng.integers(1, 5, kinds).tolist(), rng.uniform(0.5, 2, layers)
    parameters, kept = rng.integers(10, 200, layers), rng.uniform(0, 300, layers)
    sent, number = rng.uniform(1, 50, layers), int(rng.choice([2, 4, 8]))
    each = (8 * parameters.sum() + 2 * kept.sum()) / sum(counts)
    memory_bytes = (rng.uniform(1.1, 4, kinds) * each).astype(int).tolist()
    return chain_problem(
        forward_s.tolist(), (2 * forward_s).tolist(), num_micro_batches=number, counts=counts,
        speeds=rng.uniform(0.5, 3, kinds).tolist(), memory_bytes=memory_bytes,
        prices=rng.uniform(0.5, 4, kinds).tolist(), parameters=parameters.tolist(),
        activation_bytes=kept.tolist(), output_bytes=sent.tolist(),
        optimizer_s=rng.uniform(0, 0.5, layers).tolist(), schedule=schedule,
        link=Link(
            latency_s=float(rng.choice([0, 0.05, 0.3])),
            bandwidth_bytes_per_s=float(rng.choice([20.0, 200.0, 5000.0])),
        ),
    )  # fmt: skip


def cheapest_above(problem: Problem, share: float) -> Problem:
    """The cheapest plan is asked for that is not much slower than the fastest even one."""
    even = place(problem, "uniform-3d").estimate.throughput_samples_per_s
    values = {"objective": "price", "min_throughput_samples_per_s": share * even}
    return replace(problem, job=problem.job.changed(**values))


def fastest() -> Problem:
    return tight(17, "1f1b")


@pytest.mark.parametrize(
    "asked",
    [lambda: cheapest_above(tight(33, "gpipe"), 0.7), lambda: tight(53, "interleaved"), fastest],
    ids=["cheapest", "interleaved", "fastest"],
)
def test_auto_is_no_worse_than_the_best_even_plan(asked: Callable[[], Problem]) -> None:
    problem = asked()
    found, even = place(problem, "auto"), place(problem, "uniform-3d")
    least = minimised(problem.job, even.estimate)
    assert minimised(problem.job, found.estimate) <= least * (1 + 1e-9)


def test_the_gap_of_an_even_plan_is_that_to_the_optimum_which_auto_knows() -> None:
    found, exact = (place(fastest(), name) for name in ("auto", "exact"))
    assert found.estimate.step_time_s < exact.estimate.step_time_s
    assert found.bound.step_time_s == exact.bound.step_time_s
    assert found.plan.bound == found.bound
