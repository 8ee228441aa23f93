"""AMP's order of devices: what links an order uses, and that annealing finds good ones."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.amp.degrees import Degrees, all_degrees
from heterps_agents.systems.amp.order import Orders, Shape, Units
from heterps_agents.systems.amp.split import Layers, cost_s
from heterps_envs.arrays import Floats


def units_with(s_per_byte: Floats) -> Units:
    count = len(s_per_byte)
    return Units(tuple((f"d{index}",) for index in range(count)), (0,) * count, s_per_byte)


def random_links(rng: np.random.Generator, count: int) -> Floats:
    links = rng.choice([0.1, 0.5, 2.0], (count, count))
    links = np.maximum(links, links.T)
    np.fill_diagonal(links, 0.0)
    return np.asarray(links)


def test_rings_and_messages_are_as_slow_as_their_slowest_link() -> None:
    links = np.array(
        [[0.0, 1.0, 2.0, 3.0], [1.0, 0.0, 4.0, 5.0], [2.0, 4.0, 0.0, 6.0], [3.0, 5.0, 6.0, 0.0]]
    )
    layers = Layers(np.ones(2), np.array([10.0, 1.0]), np.array([1.0, 0.0]))
    orders = Orders(layers, units_with(links), Shape(2, 2, 3), Budget())
    # Stages {0, 1} and {2, 3}: rings of 1 and 6 s per byte; messages 0 to 2 and 1 to 3: 5.
    split = orders.split(np.array([0, 1, 2, 3]))
    assert split.stops == (1, 2)
    assert split.seconds == pytest.approx(2 * 1 + 2 + 5 + 10)
    # The large layer on the slow ring, the small one on the other.
    assert orders.split(np.array([2, 3, 0, 1])).seconds == pytest.approx(2 * 1 + 2 + 5 + 60)


def test_annealing_finds_the_best_order_of_few_devices() -> None:
    rng, missed = np.random.default_rng(3), 0
    for seed in range(12):
        layers = Layers(rng.random(5) + 0.2, rng.random(5) * 3, rng.random(5))
        units, shape = units_with(random_links(rng, 6)), Shape(2, 3, 4)
        every = Orders(layers, units, shape, Budget())
        least_s = min(every.split(np.array(order)).seconds for order in permutations(range(6)))
        annealed = Orders(layers, units, shape, Budget())
        annealed.anneal(seed, 4)
        found = annealed.best(1)[0].split.seconds
        assert found <= 1.1 * least_s
        missed += found > least_s * (1 + 1e-9)
    assert missed <= 2


def test_orders_are_told_apart_by_what_stands_where() -> None:
    units = Units((("a",), ("b",), ("c",), ("d",)), (0, 0, 1, 1), links_of_two_nodes())
    layers = Layers(np.ones(4), np.ones(4), np.zeros(4))
    orders = Orders(layers, units, Shape(2, 2, 4), Budget())
    orders.anneal(0, 4)
    found = orders.best(4)
    assert len({tuple(units.kinds[unit] for unit in each.order) for each in found}) == len(found)
    assert {frozenset(found[0].order[:2]), frozenset(found[1].order[:2])} == {
        frozenset({0, 1}),
        frozenset({2, 3}),
    }
    assert found[0].split.seconds == pytest.approx(3 * 2 + 4 + 2 * 0.1)


def links_of_two_nodes() -> Floats:
    """Fast inside {0, 1} and {2, 3}."""
    node = np.array([0, 0, 1, 1])
    links = np.where(node[:, None] == node, 0.1, 3.0)
    np.fill_diagonal(links, 0.0)
    return links


def test_degrees_use_all_devices_and_share_micro_batches_equally() -> None:
    found = list(all_degrees(12, 5, 8, (1, 2)))
    assert found == [
        Degrees(1, 4, 3),
        Degrees(2, 2, 3),
    ]


def test_the_published_formula_counts_a_ring_twice_less_a_share() -> None:
    layers = Layers(np.ones(2), np.array([8.0, 8.0]), np.zeros(2))
    units = units_with(np.full((4, 4), 0.5) - 0.5 * np.eye(4))
    orders = Orders(layers, units, Shape(4, 1, 2), Budget())
    stages = orders._stages(np.arange(4))
    assert stages.ring_s_per_byte == (2 * 3 / 4 * 0.5,)
    assert cost_s(layers, stages, (2,)) == pytest.approx(2 + 2 + 16 * 0.75)
