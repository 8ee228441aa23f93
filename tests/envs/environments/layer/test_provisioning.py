"""Replicas for formed stages: against all provisionings of small chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from heterps_envs.closed_form.formula import FITS, evaluate
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.objective import Goal, read_stages, write_code
from heterps_envs.closed_form.placement import PlacedStage, decode, encode
from heterps_envs.closed_form.replicas import provision_greedily as greedy_rule
from heterps_envs.environments.layer.provisioning import provision
from tests.envs.small_problems import random_tables

COUNTS = (3, 2, 4)


def random_kinds(rng: np.random.Generator, num_layers: int) -> NDArray[np.int64]:
    """Runs of classes, of which each has at most as many as it has devices."""
    while True:
        cuts = np.sort(rng.choice(np.arange(1, num_layers), int(rng.integers(0, 4)), replace=False))
        kinds = np.zeros(num_layers, np.int64)
        previous, runs = -1, [0] * len(COUNTS)
        for start, stop in zip([0, *cuts], [*cuts, num_layers], strict=True):
            kind = int(rng.choice([c for c in range(len(COUNTS)) if c != previous]))
            kinds[start:stop], previous = kind, kind
            runs[kind] += 1
        if all(own <= count for own, count in zip(runs, COUNTS, strict=True)):
            return kinds


def costs(codes: NDArray[np.int32], kernel: KernelTables, is_price: bool) -> NDArray[np.float64]:
    """Step time, or price times it; inf where the placement does not fit."""
    step_time_s, price, verdict = evaluate(codes, kernel)
    cost = step_time_s * price if is_price else step_time_s
    return np.where(verdict == FITS, cost, math.inf)


def all_provisionings(kinds: NDArray[np.int64]) -> NDArray[np.int32]:
    """(N, L) every choice of replicas that the counts allow."""
    stages = decode(kinds.astype(np.int32))
    choices: list[NDArray[np.int32]] = []
    for replicas in product(*[range(1, COUNTS[stage.device_class] + 1) for stage in stages]):
        used = np.zeros(len(COUNTS), int)
        for stage, own in zip(stages, replicas, strict=True):
            used[stage.device_class] += own
        if (used <= COUNTS).all():
            choices.append(encode(with_replicas(stages, replicas)))
    return np.array(choices)


def with_replicas(stages: Sequence[PlacedStage], replicas: Sequence[int]) -> list[PlacedStage]:
    return [
        PlacedStage(stage.first_layer, stage.last_layer, stage.device_class, own)
        for stage, own in zip(stages, replicas, strict=True)
    ]


@pytest.mark.parametrize("is_price", [False, True])
def test_replicas_are_the_best_of_all(is_price: bool) -> None:
    for gap in gaps_to_the_best(is_price, range(150)):
        assert abs(gap) < 1e-12


@pytest.mark.parametrize("is_price", [False, True])
def test_the_greedy_rule_for_many_devices_is_nearly_always_as_good(is_price: bool) -> None:
    gaps = gaps_to_the_best(is_price, range(200), provision_greedily)
    assert min(gaps) > -1e-12
    assert np.mean(np.array(gaps) < 1e-9) > 0.93


def gaps_to_the_best(
    is_price: bool, seeds: range, method: Callable[..., NDArray[np.int32]] = provision
) -> list[float]:
    """Of the problems that have a provisioning; inf where the method finds none."""
    rng, gaps = np.random.default_rng(7), []
    for seed in seeds:
        tables = random_tables(seed, 6, COUNTS, num_micro_batches=int(rng.integers(1, 17)))
        kernel, kinds = kernel_tables(tables), random_kinds(rng, 6)
        found = costs(method(kinds[None], kernel, Goal(is_price)), kernel, is_price)[0]
        least = costs(all_provisionings(kinds), kernel, is_price).min()
        if math.isfinite(least):
            gaps.append(found / least - 1)
    assert len(gaps) > len(seeds) // 3
    return gaps


def provision_greedily(
    kinds: NDArray[np.int64], kernel: KernelTables, goal: Goal
) -> NDArray[np.int32]:
    """What `provision` does where there are too many states."""
    stages, code = np.empty((kernel.num_layers, 3), np.int64), np.zeros(kinds.shape, np.int32)
    count = read_stages(kinds[0], stages)
    free = kernel.device_count - np.bincount(stages[:count, 1], minlength=kernel.num_classes)
    greedy_rule(kernel, stages, count, goal, free)
    write_code(stages, count, code[0])
    return code


def test_a_floor_buys_the_cheapest_replicas_that_keep_it() -> None:
    kinds = np.zeros((1, 6), np.int64)
    tables = random_tables(
        1,
        6,
        (4,),
        num_micro_batches=8,
        is_gpipe=False,
        optimizer_s=np.full((6, 1), 0.01),  # which replicas do not share: each costs a little
        gradient_bytes=np.zeros(6),
        latency_s=np.zeros((1, 1)),
        memory_bytes=np.array([1e9]),
    )
    kernel = kernel_tables(tables)
    alone_s = evaluate(provision(kinds, kernel, Goal(True)), kernel)[0][0]
    assert decode(provision(kinds, kernel, Goal(True))[0])[0].replicas == 1
    # Of 8 micro-batches three replicas share 3, so four are cheaper.
    for limit, replicas in ((0.9, 2), (0.45, 4)):
        code = provision(kinds, kernel, Goal(True, limit * alone_s))[0]
        assert decode(code)[0].replicas == replicas


def test_stages_beyond_the_devices_of_a_class_are_left_as_they_are() -> None:
    kernel = kernel_tables(random_tables(2, 5, (1, 2)))
    code = provision(np.array([[0, 1, 0, 1, 1]]), kernel)[0]
    assert [stage.replicas for stage in decode(code)] == [1, 1, 1, 1]
    assert not np.isfinite(evaluate(code[None], kernel)[0][0])
