"""Links between classes as arrays, against those of every pair of devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations, product

import numpy as np
import pytest

from heterps_configs.documents.cluster import Device, Link
from heterps_envs.links import devices_by_node
from heterps_envs.problem import Problem
from tests.envs.simulator.test_device_choice import some_problem

Pairs = Iterable[tuple[Device, Device]]


def _chosen(
    problem: Problem, pairs: Pairs, choose: Callable[[Iterable[float]], float]
) -> list[float] | None:
    links = [problem.cluster.link(a, b) for a, b in pairs if a.name != b.name]
    return _numbers(links, choose) if links else None


def _numbers(links: list[Link], choose: Callable[[Iterable[float]], float]) -> list[float]:
    return [
        choose(link.latency_s for link in links),
        choose(1 / link.bandwidth_bytes_per_s for link in links),
    ]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("is_fastest", [False, True])
def test_classes_have_the_links_of_all_their_devices(seed: int, is_fastest: bool) -> None:
    problem = some_problem(np.random.default_rng(seed))
    choose = min if is_fastest else max
    found = problem.links.of_classes(problem.classes, problem.nodes_apart, is_fastest=is_fastest)
    for (i, one), (j, two) in product(enumerate(problem.classes), repeat=2):
        expected = _chosen(problem, product(one.devices, two.devices), choose) or [0.0, 0.0]
        assert [array[i, j] for array in found] == expected


@pytest.mark.parametrize("seed", range(25))
def test_rings_have_the_fastest_links_inside_and_between_nodes(seed: int) -> None:
    problem = some_problem(np.random.default_rng(seed))
    links, classes = problem.links, problem.classes
    rings = links.rings(classes, problem.nodes_apart, is_fastest=False)
    latency_s, inverse = links.of_classes(classes, problem.nodes_apart, is_fastest=False)
    for index, entry in enumerate(classes):
        by_node = devices_by_node(entry.devices)
        inside = (pair for own in by_node.values() for pair in permutations(own, 2))
        between = permutations([own[0] for own in by_node.values()], 2)
        assert rings.node_size[index] == max(map(len, by_node.values()))
        for far, pairs in enumerate((inside, between)):
            expected = _chosen(problem, pairs, min)
            expected = expected or [latency_s[index, index], inverse[index, index]]
            assert [rings.latency_s[index, far], rings[2][index, far]] == expected


@pytest.mark.parametrize("seed", range(25))
def test_the_slowest_link_is_that_of_all_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = some_problem(rng)
    devices = problem.cluster.devices
    for _ in range(20):
        size = int(rng.integers(0, min(len(devices), 12) + 1))
        own = [devices[at] for at in rng.choice(len(devices), size, replace=False)]
        expected = _chosen(problem, permutations(own, 2), max) or [0.0, 0.0]
        names = [device.name for device in own]
        assert list(problem.slowest_link_inside(names)) == expected
        pairs = [(own[a], own[b]) for a, b in rng.integers(0, size, (6, 2))] if size else []
        expected = _chosen(problem, pairs, max) or [0.0, 0.0]
        assert list(problem.slowest_link((a.name, b.name) for a, b in pairs)) == expected
