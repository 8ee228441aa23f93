"""Layers of operator graphs: the loss stays below its bound; the chain says what the graph said."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_agents.splits.coarsening import chain_profile, coarsen
from heterps_agents.splits.contiguous import split_contiguous
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Node
from heterps_configs.documents.job import Job
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from tests.envs.small_graphs import random_graph
from tests.envs.small_problems import FAST, device_type

SEEDS = st.integers(0, 100_000)


def skip_graph(**of_node: object) -> OperatorGraph:
    """Three nodes in a row, the first also read by the last; the middle one has a backward twin."""
    node = {"accelerator_s": 1.0, "cpu_s": 3.0, "parameter_bytes": 8.0, **of_node}
    nodes = [
        {"name": "first", **node, "output_bytes": 5.0},
        {"name": "middle", **node, "output_bytes": 7.0, "color_class": 4},
        {"name": "last", **node},
        {"name": "gradient", **node, "is_backward": True, "color_class": 4},
    ]
    return OperatorGraph.from_mapping(
        {
            "name": "skip",
            "num_accelerators": 2,
            "nodes": nodes,
            "edges": [(0, 1), (1, 2), (0, 2), (1, 3)],
        }
    )


@given(SEEDS, st.integers(1, 5))
@settings(max_examples=120)
def test_layers_lose_at_most_the_bound_along_the_execution_order(seed: int, most: int) -> None:
    graph = random_graph(seed, cpus=2).changed(accelerator_memory_bytes=None)
    chain = coarsen(graph, most)
    assert 1 <= len(chain.layers) <= most
    assert sorted(node for layer in chain.layers for node in layer) == list(range(len(graph.nodes)))
    anywhere = split_contiguous(graph, max_ideals=1).linear_max_load_s
    layered = split_contiguous(chain.graph)
    assert layered.max_load_s <= anywhere + chain.loss_bound_s + 1e-9


@given(SEEDS)
@settings(max_examples=40)
def test_enough_layers_lose_nothing(seed: int) -> None:
    graph = random_graph(seed)
    assert coarsen(graph, len(graph.nodes)).loss_bound_s == 0


@given(SEEDS)
@settings(max_examples=40)
def test_layers_are_in_execution_order(seed: int) -> None:
    graph = random_graph(seed)
    layers = coarsen(graph, 3).layers
    layer_of = {node: position for position, layer in enumerate(layers) for node in layer}
    for producer, consumer in graph.edges:
        if not graph.nodes[consumer].is_backward:
            assert layer_of[producer] <= layer_of[consumer]


def test_a_graph_has_at_least_one_layer() -> None:
    with pytest.raises(HeterpsError, match="at least one layer"):
        coarsen(skip_graph(), 0)


def test_a_profile_counts_what_crosses_each_cut() -> None:
    profile = chain_profile(coarsen(skip_graph(), 10))
    assert [layer.name for layer in profile.layers] == ["0.first", "1.middle", "2.last"]
    assert [layer.output_bytes for layer in profile.layers] == [5, 5 + 7, 0]
    assert [layer.num_parameters for layer in profile.layers] == [2, 4, 2]
    accelerator, cpu = profile.measurements
    assert (accelerator.forward_s, accelerator.backward_s) == ((1, 1, 1), (0, 1, 0))
    assert (cpu.forward_s, cpu.backward_s) == ((3, 3, 3), (0, 3, 0))


def test_seconds_of_communication_need_a_bandwidth() -> None:
    nodes = [{"name": f"n{i}", "accelerator_s": 1, "communication_s": 2} for i in range(2)]
    graph = OperatorGraph.from_mapping(
        {"name": "pair", "num_accelerators": 2, "nodes": nodes, "edges": [(0, 1)]}
    )
    chain = coarsen(graph, 2)
    with pytest.raises(HeterpsError, match="give bytes_per_s"):
        chain_profile(chain)
    assert chain_profile(chain, bytes_per_s=10).layers[0].output_bytes == 20


def test_an_operator_graph_is_placed_on_a_chain_of_device_classes() -> None:
    """One accelerator and a CPU of a third of its speed: the CPU takes one of four seconds."""
    types = ("accelerator", "cpu")
    groups = tuple(DeviceGroup(name=name, type=name, count=1) for name in types)
    cluster = Cluster(
        name="pair",
        device_types=tuple(device_type(name) for name in types),
        nodes=(Node(name="node", devices=groups, link=FAST),),
    )
    job = Job(global_batch_size=100, micro_batch_size=1, dtype="float32")
    problem = Problem(chain_profile(coarsen(skip_graph(), 10)), cluster, job)
    plan = planner_named("exact").plan(problem, Budget())
    devices = {stage.devices: stage.last_layer - stage.first_layer + 1 for stage in plan.stages}
    assert len(devices) == 2
    assert sum(devices.values()) == 3
