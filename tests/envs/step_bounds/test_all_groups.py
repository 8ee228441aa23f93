"""As `test_all_plans`, with tensor-parallel groups and with layers that are computed again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s
from heterps_envs.step_bounds.executable import least_executable_s
from tests.envs.small_problems import chain_problem
from tests.envs.step_bounds.test_all_plans import Groups, all_plans, on_nodes

ROUNDING = 1e-9
COUNTS = ((2, 1), (2, 2), (3, 1), (1, 2), (1, 1, 1), (2, 1, 1))
SPLIT = TensorSplit(
    unit="columns", num_units=4, parameters=8, forward_flops=8e11, backward_flops=16e11,
    forward_sums=(1.0,), backward_sums=(1.0,),
)  # fmt: skip


def drawn(seed: int) -> Problem:
    """Two or three layers that groups can split, on nodes of unlike devices."""
    rng = np.random.default_rng(seed)
    counts = COUNTS[rng.integers(len(COUNTS))]
    num_layers = int(rng.integers(2, 3 if sum(counts) > 3 else 4))

    def some(low: float, high: float) -> list[float]:
        return [float(value) for value in rng.uniform(low, high, num_layers)]

    room = int(rng.integers(150, 600)) if rng.integers(2) else 10**9
    problem = chain_problem(
        some(0.1, 1),
        some(0.1, 1),
        num_micro_batches=int(rng.integers(1, 4)),
        counts=counts,
        speeds=(1.0, *(float(speed) for speed in rng.uniform(1, 5, len(counts) - 1))),
        parameters=rng.integers(10, 20, num_layers).tolist(),
        activation_bytes=some(0, 60),
        optimizer_s=some(0, 0.3),
        output_bytes=some(0, 30),
        memory_bytes=[room] * len(counts),
        schedule=("1f1b", "gpipe")[rng.integers(2)],
    )
    layers = tuple(
        layer.changed(forward_flops=1e12, backward_flops=2e12, tensor_split=SPLIT)
        for layer in problem.profile.layers
    )
    between = Link(latency_s=float(rng.uniform(0, 0.05)), bandwidth_bytes_per_s=100.0)
    cluster = on_nodes(problem.cluster, counts, False, between)
    allowed = Strategy(tensor_parallel=(), recompute="auto", shard_state="auto")
    profile = problem.profile.changed(layers=layers)
    return replace(problem, cluster=cluster, profile=profile, strategy=allowed)


def groupings(problem: Problem) -> Iterator[Groups]:
    """Ways to put equal devices together, with those that are left alone."""
    options = []
    for entry in problem.classes:
        names = [device.name for device in entry.devices]
        heads = [tuple(names[:size]) for size in range(1, len(names) + 1)]
        options.append([(head, *((name,) for name in names[len(head) :])) for head in heads])
    for choice in product(*options):
        yield tuple(group for groups in choice for group in groups)


def least_simulated_s(problem: Problem) -> float:
    """The least over all plans of all groupings, where all stages compute again or none does."""
    least_s = float("inf")
    for groups in groupings(problem):
        for plan in all_plans(problem, groups):
            stages = tuple(
                each.changed_unchecked(recompute_layers=tuple(each.layers)) for each in plan.stages
            )
            for own in (plan, plan.changed_unchecked(stages=stages)):
                least_s = min(least_s, feasible_step_time_s(problem, own))
    return least_s


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 4, 5, 7, 9, 13, 17])
def test_no_plan_with_groups_is_below_the_bound(seed: int) -> None:
    problem = drawn(seed)
    least_s = least_simulated_s(problem)
    assert least_executable_s(problem) * (1 - ROUNDING) <= least_s
    assert least_executable_s(problem, least_s * (1 + 1e-6)) <= least_s * (1 + ROUNDING)
