"""AutoHete's integer programme against brute force: all ways of all layers."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from heterps_agents.systems.autohete.programme import best_ways
from heterps_agents.systems.autohete.ways import WAYS_OF_PLANS, LayerWays, Part, stage_ways
from heterps_envs.problem import Problem
from tests.agents.systems.autohete.boxes import box, random_layers


def random_ways(rng: np.random.Generator, number: int, num_ways: int = 3) -> LayerWays:
    """Numbers without any model behind them: more seconds for fewer bytes, equal layers, closed
    ways, cuts that both sides keep."""
    base = np.arange(number)
    if rng.random() < 0.3:
        base = rng.integers(0, (number + 1) // 2, number)
    seconds = np.sort(rng.uniform(1, 5, (number, num_ways)), axis=1)
    held = -np.sort(-rng.uniform(0, 8, (number, num_ways)), axis=1)
    seconds[rng.random(seconds.shape) < 0.05] = math.inf
    seconds[:, 0] = np.where(np.isinf(seconds).all(axis=1), 1.0, seconds[:, 0])
    once = rng.uniform(0, 6, (2, number, num_ways)) * (rng.random((2, 1, num_ways)) < 0.6)
    cuts = rng.uniform(0, 3, (2, number, num_ways)) * (rng.random((2, number, 1)) < 0.6)
    return LayerWays(seconds[base], held[base], cuts[0, 1:], cuts[1, 1:], once[:, base])


def least_seconds(layers: LayerWays, room_bytes: float) -> float:
    """Of all ways that fit, by the sums of the programme written out; inf where none do."""
    number, num_ways = layers.seconds.shape
    codes = np.array(list(product(range(num_ways), repeat=number)))
    rows = np.arange(number)
    seconds, held = (
        layers.seconds[rows, codes].sum(axis=1),
        layers.held_bytes[rows, codes].sum(axis=1),
    )
    for cut in range(number - 1):
        front = layers.front_bytes[cut, codes[:, cut]]
        held += np.maximum(front, layers.back_bytes[cut, codes[:, cut + 1]])
    for once in layers.once_bytes:
        held += once[rows, codes].max(axis=1)
    return float(np.where(held <= room_bytes, seconds, math.inf).min())


@pytest.mark.slow
def test_a_hundred_random_models_of_up_to_eight_layers_get_the_optimum_of_all_ways() -> None:
    rng, num_tight, num_refused = np.random.default_rng(22), 0, 0
    for _ in range(100):
        number = int(rng.integers(1, 9))
        layers = random_ways(rng, number)
        ends = [layers.bytes_of(np.full(number, way)) for way in range(3)]
        room_bytes = float(rng.uniform(0.7 * min(ends), 1.05 * max(ends)))
        least, found = least_seconds(layers, room_bytes), best_ways(layers, room_bytes)
        if found is None:
            assert math.isinf(least)
            num_refused += 1
            continue
        assert found.seconds == pytest.approx(least, rel=1e-9)
        assert layers.bytes_of(found.ways) <= room_bytes
        num_tight += found.seconds > layers.seconds.min(axis=1).sum() + 1e-9
    assert num_tight > 40
    assert num_refused > 3


def test_nine_ways_are_no_other_programme() -> None:
    rng = np.random.default_rng(1)
    for _ in range(5):
        layers = random_ways(rng, 4, num_ways=9)
        room_bytes = 0.6 * layers.bytes_of(np.zeros(4, np.int64))
        found = best_ways(layers, room_bytes)
        least = least_seconds(layers, room_bytes)
        assert (math.inf if found is None else found.seconds) == pytest.approx(least, rel=1e-9)


def needed_bytes(problem: Problem, part: Part, ways: tuple[int, ...]) -> float:
    """What a stage needs beside what is always there, by the cost model's own functions."""
    memory = problem.layer_memory
    done = list(zip(part.layers, ways, strict=True))
    again = [layer for layer, way in done if way == 1]
    away = [layer for layer, way in done if way == 2]
    first, last = part.layers[0], part.layers[-1]
    kept = memory.kept_bytes(first, last, part.kind, again, away)
    kept -= memory.kept_bytes(first, last, part.kind, (), part.layers)
    once = max((memory.own_bytes[e, 0] + memory.saved_out_bytes[e] for e in again), default=0.0)
    passing = max((problem.offload.passing_bytes[e, 0] for e in away), default=0.0)
    state = problem.tables.state_bytes[first : last + 1].sum()
    return float(state + part.held(problem) * kept + once + passing)


def needed_seconds(problem: Problem, part: Part, ways: tuple[int, ...]) -> float:
    total = 0.0
    for layer, way in zip(part.layers, ways, strict=True):
        forward_s, backward_s, optimizer_s = (
            float(table[layer, part.kind])
            for table in (
                problem.tables.forward_s, problem.tables.backward_s, problem.tables.optimizer_s,
            )
        )  # fmt: skip
        if way == 1:
            backward_s += forward_s
        if way == 2:
            forward_s += float(problem.offload.forward_s[layer, part.kind])
            backward_s += float(problem.offload.backward_s[layer, part.kind])
        total += part.micro_batches * (forward_s + backward_s) + optimizer_s
    return total


@pytest.mark.slow
def test_of_models_the_ways_are_the_best_by_the_memory_of_our_cost_model() -> None:
    rng, chosen = np.random.default_rng(4), set[int]()
    for _ in range(12):
        problem = box(random_layers(rng, int(rng.integers(2, 8))), 1.0)
        num_layers = problem.profile.num_layers
        part = Part(range(num_layers), 0, int(rng.integers(0, 3)), 3, 1, 4)
        costs = stage_ways(problem, part, WAYS_OF_PLANS)
        every = list(product(range(3), repeat=num_layers))
        num_bytes = np.array([needed_bytes(problem, part, ways) for ways in every])
        seconds = np.array([needed_seconds(problem, part, ways) for ways in every])
        for share in (0.2, 0.6):
            # Not to the last byte of some ways, where roundings decide.
            room_bytes = float(np.quantile(num_bytes, share)) * (1 + 1e-5)
            found = best_ways(costs.layers, room_bytes)
            assert found is not None
            assert found.seconds == pytest.approx(seconds[num_bytes <= room_bytes].min())
            chosen |= set(found.ways.tolist())
    assert chosen == {0, 1, 2}


def test_equal_layers_are_solved_as_one_with_a_count() -> None:
    """Eighty blocks: by layer there are as many equal answers as orders of them."""
    number = 80
    layers = LayerWays(
        np.tile([1.0, 1.37, 1.61], (number, 1)),
        np.tile([5.0, 2.2, 1.3], (number, 1)),
        np.zeros((number - 1, 3)),
        np.zeros((number - 1, 3)),
        np.tile([0.0, 3.0, 6.0], (1, number, 1)),
    )
    found = best_ways(layers, 250.5)
    assert found is not None
    every = (
        (again * 0.37 + away * 0.61 + number)
        for again in range(number + 1)
        for away in range(number + 1 - again)
        if 400 - 2.8 * again - 3.7 * away + (6.0 if away else 3.0 if again else 0.0) <= 250.5
    )
    assert found.seconds == pytest.approx(min(every))


def test_of_ways_that_are_as_fast_the_plainest_that_fit_are_taken() -> None:
    layers = LayerWays(
        np.array([[1.0, 1.5, 1.0]] * 3),
        np.array([[4.0, 1.0, 2.0]] * 3),
        np.zeros((2, 3)),
        np.zeros((2, 3)),
        np.zeros((1, 3, 3)),
    )
    found = best_ways(layers, 10.5)
    assert found is not None
    assert sorted(found.ways.tolist()) == [0, 0, 2]
