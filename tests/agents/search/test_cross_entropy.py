"""The model of the cross-entropy method: what it draws, and where fitting moves it."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_agents.search.cross_entropy import (
    ELITE_SHARE,
    LEAST_CHANCE,
    SMOOTHING,
    _draw,
    _fit,
    _Generation,
    _Model,
    _uniform,
    generation_size,
)
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import STEP_TIME, search_cost
from heterps_envs.problem_sets.chains import generate


def test_draws_cover_all_layers_on_devices_that_there_are() -> None:
    rng = np.random.default_rng(1)
    for tables in generate(20, seed=3):
        kernel = kernel_tables(tables)
        model = _uniform(kernel)
        stages = np.zeros((tables.num_layers, 3), np.int64)
        used = np.zeros(tables.num_classes, np.int64)
        for _ in range(20):
            count = _draw(kernel, rng, model, stages, used)
            stops = stages[:count, 0].tolist()
            assert stops == sorted(set(stops))
            assert stops[-1] == tables.num_layers
            search_cost(stages, count, kernel, used, STEP_TIME)
            assert (used <= tables.device_count).all()


def test_a_sure_model_draws_its_placement() -> None:
    tables = generate(1, seed=4, layers=(6, 6), classes=(2, 2), count_range=(3, 3))[0]
    kernel = kernel_tables(tables)._replace(memory_bytes=np.full(2, np.inf))
    kind, replicas = np.zeros((6, 2)), np.zeros((6, 3))
    kind[:2, 1] = kind[2:, 0] = 1.0
    replicas[:2, 2] = replicas[2:, 0] = 1.0
    cut = np.zeros(6)
    cut[2] = 1.0
    stages = np.zeros((6, 3), np.int64)
    count = _draw(
        kernel, np.random.default_rng(0), _Model(cut, kind, replicas), stages, np.zeros(2, np.int64)
    )
    np.testing.assert_array_equal(stages[:count], [(2, 1, 3), (6, 0, 1)])


def test_fitting_keeps_the_elite_and_moves_towards_it() -> None:
    members, layers = 20, 4
    model = _Model(np.full(layers, 0.5), np.full((layers, 2), 0.5), np.full((layers, 3), 1 / 3))
    generation = _Generation(
        np.zeros((members, layers, 3), np.int64),
        np.ones(members, np.int64),
        np.arange(members, 0.0, -1.0),
        np.zeros(2, np.int64),
    )
    generation.stages[:, 0] = (layers, 0, 1)
    generation.stages[-2:, :2] = [(1, 1, 2), (layers, 0, 3)]  # the best two
    generation.counts[-2:] = 2
    elite = _fit(model, generation)
    assert elite == int(ELITE_SHARE * members) == 2
    np.testing.assert_array_equal(generation.costs[:2], [1.0, 2.0])
    np.testing.assert_array_equal(generation.stages[0, :2], [(1, 1, 2), (layers, 0, 3)])
    assert model.cut[1] == pytest.approx(0.5 * (1 - SMOOTHING) + SMOOTHING)
    assert model.cut[2] == pytest.approx(0.5 * (1 - SMOOTHING))
    assert model.kind[0, 1] == pytest.approx(0.5 * (1 - SMOOTHING) + SMOOTHING)
    assert model.replicas[3, 2] == pytest.approx((1 - SMOOTHING) / 3 + SMOOTHING)


def test_nothing_becomes_impossible() -> None:
    tables = generate(1, seed=8)[0]
    model = _uniform(kernel_tables(tables))
    generation = _Generation(
        np.zeros((20, tables.num_layers, 3), np.int64),
        np.ones(20, np.int64),
        np.zeros(20),
        np.zeros(2, np.int64),
    )
    generation.stages[:, 0] = (tables.num_layers, 0, 1)
    for _ in range(50):
        _fit(model, generation)
    assert model.cut.min() >= LEAST_CHANCE
    assert model.cut.max() <= 1 - LEAST_CHANCE
    assert model.kind.min() > 0
    assert model.replicas.min() > 0


def test_generations_grow_with_the_budget() -> None:
    sizes = [generation_size(evaluations) for evaluations in (1, 800, 10**6)]
    assert sizes == sorted(set(sizes))
