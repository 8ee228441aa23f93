"""Operator graphs: what a split costs, and what it breaks."""

from __future__ import annotations

import math
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_envs.graphs.operators import assignment_problems, device_loads, graph_arrays, max_load
from tests.envs.small_graphs import all_assignments, assignments_and_loads_s, random_graph


def fork(**changes: object) -> OperatorGraph:
    """One node that two others read, and one that reads both."""
    seconds = (1.0, 2.0, 4.0, 8.0)
    nodes = [
        {
            "name": f"n{index}",
            "accelerator_s": value,
            "cpu_s": 10 * value,
            "communication_s": value / 10,
            "memory_bytes": value,
        }
        for index, value in enumerate(seconds)
    ]
    graph = {
        "name": "fork",
        "num_accelerators": 2,
        "num_cpus": 1,
        "nodes": nodes,
        "edges": [(0, 1), (0, 2), (1, 3), (2, 3)],
    }
    return OperatorGraph.from_mapping(graph | changes)


def test_one_device_pays_no_communication() -> None:
    assert device_loads(fork(), (0, 0, 0, 0)) == [15, 0, 0]


def test_an_output_is_paid_once_on_either_side_whatever_the_number_of_readers() -> None:
    sent_s, received_s = 0.1, 0.1
    assert device_loads(fork(), (0, 1, 1, 1)) == pytest.approx([1 + sent_s, 14 + received_s, 0])


def test_a_cpu_pays_no_communication() -> None:
    loads = device_loads(fork(), (2, 0, 0, 1))
    assert loads == pytest.approx([2 + 4 + 0.1 + 0.2 + 0.4, 8 + 0.2 + 0.4, 10])


def test_a_node_costs_infinitely_much_where_it_cannot_run() -> None:
    nodes = [
        {"name": "only accelerator", "accelerator_s": 1},
        {"name": "only cpu", "accelerator_s": 0, "cpu_s": 1, "supported_on_accelerator": False},
    ]
    graph = fork(nodes=nodes, edges=[])
    assert max_load(graph, (0, 2)) == 1
    assert device_loads(graph, (2, 0)) == [math.inf, 0, math.inf]


@pytest.mark.parametrize(
    ("assignment", "changes", "problem"),
    [
        ((0, 0, 0), {}, "3 devices for 4 nodes"),
        ((0, 0, 0, 3), {}, "n3: device 3 does not exist (0 .. 2)"),
        ((0, 0, 1, 1), {"accelerator_memory_bytes": 11}, "device 1: 12 B, 1 B more than fits"),
    ],
)
def test_a_broken_assignment_is_explained(
    assignment: tuple[int, ...], changes: dict[str, object], problem: str
) -> None:
    assert assignment_problems(fork(**changes), assignment) == [problem]


def test_colour_classes_and_support_are_checked() -> None:
    nodes = [
        {"name": "a", "accelerator_s": 1, "color_class": 7},
        {"name": "b", "accelerator_s": 1, "color_class": 7},
    ]
    graph = fork(nodes=nodes, edges=[(0, 1)])
    assert assignment_problems(graph, (1, 1)) == []
    assert assignment_problems(graph, (0, 1)) == ["b: on device 1, but its colour class 7 is on 0"]
    assert assignment_problems(graph, (2, 2)) == [
        "a: does not run on device 2",
        "b: does not run on device 2",
    ]


def test_arrays_number_colour_classes_and_leave_out_repeated_edges() -> None:
    nodes = [
        {"name": "a", "accelerator_s": 1, "color_class": 30},
        {"name": "b", "accelerator_s": 2},
        {"name": "c", "accelerator_s": 3, "color_class": 30, "cpu_s": 1},
    ]
    arrays = graph_arrays(fork(nodes=nodes, edges=[(1, 2), (0, 1), (1, 2)]))
    assert arrays.group.tolist() == [0, 1, 0]
    assert list(zip(arrays.producers.tolist(), arrays.consumers.tolist(), strict=True)) == [
        (0, 1),
        (1, 2),
    ]
    assert arrays.cpu_s.tolist() == [math.inf, math.inf, 1]


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_equal_accelerators_may_swap_their_nodes(seed: int) -> None:
    graph = random_graph(seed)
    rng = np.random.default_rng(seed)
    num_devices = graph.num_accelerators + graph.num_cpus
    swap = [*rng.permutation(graph.num_accelerators), *range(graph.num_accelerators, num_devices)]
    for assignment in islice(all_assignments(graph), 20):
        swapped = [int(swap[device]) for device in assignment]
        assert max_load(graph, swapped) == pytest.approx(max_load(graph, assignment))


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_all_assignments_and_their_loads_are_those_of_the_definitions(seed: int) -> None:
    """What other tests compare with, computed for all at once, is right."""
    graph = random_graph(seed, most_nodes=3)
    assignments, loads_s = assignments_and_loads_s(graph)
    devices = range(graph.num_accelerators + graph.num_cpus)
    allowed = [
        choice
        for choice in product(devices, repeat=len(graph.nodes))
        if not assignment_problems(graph, choice)
    ]
    assert sorted(map(tuple, assignments.tolist())) == allowed
    for assignment, load_s in zip(assignments.tolist(), loads_s.tolist(), strict=True):
        assert load_s == pytest.approx(max_load(graph, assignment))
