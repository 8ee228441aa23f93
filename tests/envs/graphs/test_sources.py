"""Graph problems out of documents: names, edges, links, merged operators, clear refusals."""

import numpy as np
import pytest

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.graphs.problem import pack_graphs
from heterps_envs.graphs.simulator import simulate_graph
from heterps_envs.graphs.sources import graph_of_operators, graph_of_profile
from heterps_envs.problem import Problem


def operators(nodes: list[dict[str, object]], edges: list[tuple[int, int]]) -> OperatorGraph:
    return OperatorGraph.from_mapping(
        {
            "name": "graph",
            "num_accelerators": 2,
            "num_cpus": 1,
            "accelerator_memory_bytes": 100,
            "nodes": [
                {"name": f"n{index}", "accelerator_s": 1.0, **node}
                for index, node in enumerate(nodes)
            ],
            "edges": edges,
        },
        "test",
    )


def layer(name: str, **fields: object) -> LayerProfile:
    sizes = {"num_parameters": 10, "forward_flops": 1e9, "backward_flops": 2e9}
    sizes |= {"activation_bytes": 100, "output_bytes": 100}
    return LayerProfile.from_mapping({"name": name, "kind": "Linear", **sizes, **fields}, "test")


def test_a_shipped_model_becomes_a_chain_on_the_devices_of_a_cluster() -> None:
    profile, cluster = load_profile("gpt2"), load_cluster("a100-v100")
    job = Job(global_batch_size=8, micro_batch_size=2, dtype="float16")
    graph = graph_of_profile(profile, cluster, job)
    tables = graph.tables
    assert graph.devices == tuple(device.name for device in cluster.devices)
    assert graph.nodes == tuple(entry.name for entry in profile.layers)
    assert tables.producers.tolist() == list(range(profile.num_layers - 1))
    whole = Problem(profile, cluster, job.changed(micro_batch_size=8))
    for index, device in enumerate(cluster.devices):
        kind = whole.class_of[device.name]
        costs = whole.tables
        np.testing.assert_array_equal(tables.forward_s[:, index], costs.forward_s[:, kind])
        backward_s = costs.backward_s[:, kind] + costs.optimizer_s[:, kind]
        np.testing.assert_array_equal(tables.backward_s[:, index], backward_s)
    np.testing.assert_array_equal(tables.output_bytes, whole.tables.output_bytes)


def test_devices_of_a_node_share_its_card_towards_other_nodes() -> None:
    cluster = load_cluster("a100-v100-t4")
    graph = graph_of_profile(load_profile("resnet-50"), cluster)
    nodes = [device.node for device in cluster.devices]
    size, channel = len(nodes), graph.tables.channel
    assert len(set(nodes)) > 1
    for i in range(size):
        for j in range(size):
            if i == j:
                assert graph.tables.latency_s[i, j] == 0
            elif nodes[i] == nodes[j]:
                assert channel[i, j] == i
            else:
                mates = [k for k in range(size) if nodes[k] == nodes[i]]
                far = {channel[k, j] for k in mates}
                assert far == {channel[i, j]}
                assert channel[i, j] >= size
            if i != j:
                link = cluster.link(cluster.devices[i], cluster.devices[j])
                seconds = 1 / link.bandwidth_bytes_per_s
                assert graph.tables.inverse_bandwidth_s_per_byte[i, j] == seconds


def test_tensors_that_skip_layers_become_edges_to_their_last_readers() -> None:
    profile = ModelProfile(
        name="towers",
        layers=(
            layer("table", sparse_parameters=10, sent=((3, 40.0),)),
            layer("other-table", sparse_parameters=10, sent=((2, 30.0), (1, 5.0))),
            layer("tower", sent=((1, 20.0),)),
            layer("join", sent=((1, 7.0), (1, 8.0))),
            layer("head", output_bytes=0),
        ),
    )
    graph = graph_of_profile(profile, load_cluster("gpu-cpu"), Job(global_batch_size=4))
    tables = graph.tables
    reads = [
        tables.producers[start:stop].tolist()
        for start, stop in zip(tables.producer_start, tables.producer_start[1:], strict=False)
    ]
    assert reads == [[], [], [1], [0, 1, 2], [3]]
    scale = 4 * profile.activation_scale("bfloat16")
    np.testing.assert_allclose(tables.output_bytes, np.array([40, 30, 20, 15, 0]) * scale)


def test_a_cluster_of_too_many_devices_is_refused() -> None:
    with pytest.raises(HeterpsError, match="24 devices; graphs are placed on at most 16"):
        graph_of_profile(load_profile("gpt2"), load_cluster("eight-types"))


def test_transfers_between_accelerators_take_the_documents_seconds_twice() -> None:
    nodes: list[dict[str, object]] = [
        {"communication_s": 0.5, "memory_bytes": 60, "cpu_s": 4.0},
        {"memory_bytes": 60, "cpu_s": 4.0},
    ]
    graph = graph_of_operators(operators(nodes, [(0, 1)]))
    assert graph.devices == ("accelerator-0", "accelerator-1", "cpu-0")
    seconds = {
        (0, 1): 1 + 2 * 0.5 + 1,
        (0, 2): 1 + 0.5 + 4,
        (2, 0): 4 + 0.5 + 1,
        (2, 2): 4 + 4,
        (0, 0): np.inf,
    }
    for devices, expected in seconds.items():
        run = simulate_graph(graph.tables, np.array(devices, np.int16))
        assert run.step_time_s == pytest.approx(expected)


def test_backward_operators_are_the_backward_pass_of_their_twins() -> None:
    nodes: list[dict[str, object]] = [
        {"color_class": 0, "cpu_s": 9.0},
        {"color_class": 1},
        {"color_class": 1, "is_backward": True, "accelerator_s": 3.0},
        {"is_backward": True, "accelerator_s": 0.25},
        {"color_class": 0, "is_backward": True, "accelerator_s": 2.0, "cpu_s": 9.0},
    ]
    graph = graph_of_operators(operators(nodes, [(0, 1), (1, 2), (2, 3), (3, 4)]))
    assert graph.members == ((0, 4), (1, 2, 3))
    np.testing.assert_allclose(graph.tables.forward_s[:, 0], [1, 1])
    np.testing.assert_allclose(graph.tables.backward_s[:, 0], [2, 3.25])
    np.testing.assert_allclose(graph.tables.forward_s[:, 2], [9, np.inf])
    assert graph.tables.has_backward
    run = simulate_graph(graph.tables, np.array([0, 0], np.int16))
    assert run.step_time_s == pytest.approx(1 + 1 + 3.25 + 2)


def test_operators_that_share_a_device_around_others_take_these_with_them() -> None:
    nodes: list[dict[str, object]] = [{"color_class": 7}, {}, {"color_class": 7}, {}]
    graph = graph_of_operators(operators(nodes, [(0, 1), (1, 2), (2, 3)]))
    assert graph.members == ((0, 1, 2), (3,))
    np.testing.assert_allclose(graph.tables.forward_s[:, 0], [3, 1])


def test_documents_with_one_number_for_both_passes_can_be_divided() -> None:
    graph = graph_of_operators(operators([{"output_bytes": 12}, {}], [(0, 1)]), backward_share=0.75)
    np.testing.assert_allclose(graph.tables.forward_s[:, 0], 0.25)
    np.testing.assert_allclose(graph.tables.backward_s[:, 0], 0.75)
    np.testing.assert_allclose(graph.tables.gradient_bytes, [12, 0])
    pack_graphs([graph.tables])


def test_an_operator_graph_of_too_many_devices_is_refused() -> None:
    graph = operators([{}], []).changed(num_cpus=20)
    with pytest.raises(HeterpsError, match="graph: has 22 devices; graphs are placed on at most"):
        graph_of_operators(graph)


def test_an_operator_that_no_device_here_can_run_is_named() -> None:
    document = operators([{"supported_on_accelerator": False, "cpu_s": 1.0}], [])
    graph = graph_of_operators(document.changed(num_cpus=0))
    with pytest.raises(HeterpsError, match="node 0 can run on no device"):
        pack_graphs([graph.tables])


def test_every_shipped_cluster_of_few_devices_is_read() -> None:
    for name in ("gpu-cpu", "h100-pod", "spot-two-regions"):
        cluster: Cluster = load_cluster(name)
        graph = graph_of_profile(load_profile("perceptron"), cluster)
        assert pack_graphs([graph.tables]).max_devices == len(cluster.devices)
