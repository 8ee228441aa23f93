"""The least seconds after the last backward pass begins: against all choices, simulated."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import LayerRange
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s
from heterps_envs.step_bounds.whole_plans.sum_choices import Allowance
from heterps_envs.step_bounds.whole_plans.sum_times import least_after
from heterps_envs.step_bounds.whole_plans.summed_layers import (
    Ring,
    SummedLayers,
    ring_among,
    summed_layers,
)
from tests.envs.small_problems import chain_problem, plan_of
from tests.envs.tied_problems import with_own


def drawn(seed: int, counts: tuple[int, ...] = (), *, is_tied: bool = False) -> Problem:
    """A micro-batch for each device; gradients of 0 to 4 MB in buckets of 1 MiB."""
    rng = np.random.default_rng(seed)
    num_layers, counts = int(rng.integers(2, 6)), counts or (int(rng.integers(2, 4)),)
    parameters = rng.choice([0, 10**5, 2 * 10**5, 10**6], num_layers).tolist()
    tied_to: dict[int, int] = {}
    if is_tied:
        owner, user = sorted(rng.choice(num_layers, 2, replace=False).tolist())
        parameters[user] = parameters[owner] = 3 * 10**5
        tied_to = {user: owner}

    def some(low: float, high: float) -> list[float]:
        return [float(value) for value in rng.uniform(low, high, num_layers)]

    problem = chain_problem(
        some(0.05, 0.2),
        some(0.05, 0.5),
        num_micro_batches=sum(counts),
        counts=counts,
        speeds=tuple(float(each) for each in rng.uniform(1, 1.5, len(counts))),
        parameters=parameters,
        tied_to=tied_to,
        optimizer_s=some(0.0, 0.3),
        link=Link(latency_s=float(rng.choice([1e-3, 5e-2])), bandwidth_bytes_per_s=1e7),
    )
    return replace(problem, strategy=Strategy(shard_state="auto"))


def least_simulated_s(problem: Problem) -> float:
    """Every layer's state divided or not, with sums beside passes or after them."""
    last, devices = problem.profile.num_layers - 1, problem.cluster.devices
    stages = {f"s{index}": (0, last, device.name) for index, device in enumerate(devices)}
    plan = plan_of(problem, stages, {(name,): [index] for index, name in enumerate(stages)})
    return min(
        feasible_step_time_s(
            problem,
            plan.changed(
                overlaps_reduce=overlaps,
                sharded_state=tuple(
                    LayerRange(first_layer=layer, last_layer=layer)
                    for layer, is_divided in enumerate(divided)
                    if is_divided
                ),
            ),
        )
        for overlaps in (True, False)
        for divided in product((False, True), repeat=last + 1)
    )


def least_of(problem: Problem, passing: int = 0, stepping: int = 0) -> float:
    """Seconds of a step, of a class that passes and another one that steps."""
    groups = Counter({(kind, 1): len(own.devices) for kind, own in enumerate(problem.classes)})
    ring, times = ring_among(problem, groups), problem.layer_times
    layers = range(problem.profile.num_layers)
    backward_s, optimizer_s = times.backward_s[:, passing], times.optimizer_s[:, stepping]
    summed = summed_layers(problem, {1}, layers, backward_s, optimizer_s)
    assert ring is not None
    assert summed is not None
    found = least_after(summed, ring, Allowance(10_000), divides=True)
    assert found is not None
    return float(times.forward_s[:, passing].sum()) + found.after_s


@pytest.mark.parametrize("seed", range(15))
def test_of_equal_devices_they_are_what_the_best_choice_takes(seed: int) -> None:
    problem = drawn(seed)
    assert least_of(problem) == pytest.approx(least_simulated_s(problem), rel=1e-9)


@pytest.mark.parametrize("own", [0, 4 * 10**5])
@pytest.mark.parametrize("seed", range(15))
def test_so_they_are_where_two_layers_share_parameters(seed: int, own: int) -> None:
    problem = drawn(seed, is_tied=True)
    ((user,),) = problem.profile.tied_layers.values()
    problem = with_own(problem, user, own)
    assert least_of(problem) == pytest.approx(least_simulated_s(problem), rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_of_unlike_devices_each_pair_of_classes_is_a_bound(seed: int) -> None:
    problem = drawn(seed, counts=(1, 1))
    least_s = least_simulated_s(problem)
    for passing, stepping in product(range(2), repeat=2):
        assert least_of(problem, passing, stepping) <= least_s * (1 + 1e-9)


def test_nothing_is_said_of_too_many_choices() -> None:
    """Many layers of unlike sizes, none of which it pays to divide or not."""
    rng, num_layers = np.random.default_rng(0), 60
    layers = SummedLayers(
        backward_s=[1.0] * num_layers,
        optimizer_s=[0.002] * num_layers,
        gradient_bytes=rng.uniform(1, 2, num_layers).tolist(),
        summed_bytes=rng.uniform(1, 2, num_layers).tolist(),
    )
    ring = Ring(size=2, latency_s=1.0, s_per_byte=1e-3, least_bytes=1e9)
    assert least_after(layers, ring, Allowance(10_000), divides=True) is None


def test_all_layers_are_divided_where_that_is_free() -> None:
    layers = SummedLayers([1.0, 1.0], [4.0, 4.0], [1.0, 1.0], [1.0, 1.0])
    ring = Ring(size=2, latency_s=0.0, s_per_byte=1e-9, least_bytes=1.0)
    for divides, after_s, divided in ((True, 2 + 4, {0, 1}), (False, 2 + 8, set())):
        found = least_after(layers, ring, Allowance(10_000), divides=divides)
        assert found is not None
        assert found.after_s == pytest.approx(after_s, rel=1e-6)
        assert found.divided == divided
