"""Published graphs: small files made here, and the real ones where they are at hand."""

import json
import os
from pathlib import Path

import numpy as np

from heterps_envs.graphs.problem import pack_graphs
from heterps_envs.problem_sets.published_graphs import published_graphs

PIPEDREAM = """\
node1 -- Input0 -- forward_compute_time=9.0, backward_compute_time=0.0, \
activation_size=8.0, parameter_size=0.0
node2 -- Linear -- forward_compute_time=1.0, backward_compute_time=2.0, \
activation_size=400.0, parameter_size=80.0
node3 -- Linear -- forward_compute_time=2.0, backward_compute_time=4.0, \
activation_size=40.0, parameter_size=8.0
\tnode1 -- node2
\tnode2 -- node3
"""


def dnn_partitioning(capacity: float) -> str:
    nodes = [
        {
            "id": index,
            "name": f"node{index}",
            "supportedOnFpga": 1,
            "fpgaLatency": 1.0,
            "cpuLatency": 10.0,
            "isBackwardNode": 0,
            "size": 100.0,
        }
        for index in range(3)
    ]
    edges = [{"sourceId": 0, "destId": index, "cost": 2.0, "size": 8.0} for index in (1, 2)]
    top = {"maxSizePerFPGA": capacity, "maxFPGAs": 2, "maxCPUs": 1}
    return json.dumps({**top, "nodes": nodes, "edges": edges})


def test_files_become_graphs_and_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "pipedream").mkdir()
    (tmp_path / "pipedream" / "tiny.txt").write_text(PIPEDREAM)
    (tmp_path / "pipedream" / "LICENSE.txt").write_text("a licence")
    layers = tmp_path / "dnn-partitioning" / "latency-inputs" / "LayerGraphs"
    layers.mkdir(parents=True)
    (layers / "star.json").write_text(dnn_partitioning(capacity=150.0))
    found = {graph.name: graph.tables for graph in published_graphs(tmp_path).problems}
    assert list(found) == ["latency LayerGraphs star", "PipeDream tiny"]
    star, tiny = found["latency LayerGraphs star"], found["PipeDream tiny"]
    assert (star.num_nodes, star.num_devices, star.has_backward) == (3, 3, False)
    # One third forward, two thirds backward; the node that loads data is gone.
    assert (tiny.num_nodes, tiny.num_devices) == (2, 4)
    np.testing.assert_allclose(tiny.forward_s[:, 0], [1e-3, 2e-3])
    np.testing.assert_allclose(tiny.backward_s[:, 0], [2e-3, 4e-3])


def test_the_published_files_become_graphs() -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files."""
    folder = Path(os.environ.get("HETERPS_WORKLOADS", ""))
    if not (folder / "pipedream").is_dir():
        return
    found = published_graphs(folder)
    assert {graph.name.split()[0] for graph in found.problems} == {
        "latency",
        "throughput",
        "PipeDream",
    }
    pack_graphs([graph.tables for graph in found.problems])
