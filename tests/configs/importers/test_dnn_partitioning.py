"""The importer of dnn-partitioning's workloads: units, costs, and errors that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.importers.dnn_partitioning import load_dnn_partitioning, parse_dnn_partitioning


def small_file() -> dict[str, Any]:
    """Two nodes with ids that are not dense, flags in both spellings, a class on one node."""
    return {
        "maxSizePerFPGA": 100.0,
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "nodes": [
            {
                "id": 7,
                "name": "forward",
                "supportedOnFpga": 1,
                "fpgaLatency": 2.0,
                "cpuLatency": 20,
                "isBackwardNode": 0,
                "size": 8,
                "colorClass": 3,
            },
            {
                "id": 2,
                "supportedOnFpga": False,
                "fpgaLatency": 4,
                "cpuLatency": 40,
                "isBackwardNode": True,
                "layerId": 5,
            },
        ],
        "edges": [{"sourceId": 7, "destId": 2, "cost": 0.5, "size": 123}],
    }


def problems_of(data: object) -> tuple[str, ...]:
    """What the importer says about the content of a file."""
    with pytest.raises(DocumentError) as error:
        parse_dnn_partitioning(data, "file.json")
    return error.value.problems


def test_milliseconds_become_seconds_and_ids_become_indices(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(small_file()))
    graph = load_dnn_partitioning(path)
    assert (graph.name, graph.num_accelerators, graph.num_cpus) == ("small", 2, 1)
    assert graph.accelerator_memory_bytes == 100
    forward, backward = graph.nodes
    assert (forward.accelerator_s, forward.cpu_s) == pytest.approx((0.002, 0.02))
    assert forward.communication_s == pytest.approx(0.0005)
    assert (forward.memory_bytes, forward.color_class, forward.is_backward) == (8, 3, False)
    assert (backward.name, backward.memory_bytes, backward.color_class) == ("2", 0, None)
    assert (backward.is_backward, backward.supported_on_accelerator) == (True, False)
    assert graph.edges == ((0, 1),)


def test_every_problem_is_named_at_once() -> None:
    data = small_file()
    del data["maxFPGAs"]
    data["nodes"][0]["fpgaLatency"] = "fast"
    data["nodes"][0]["colorClass"] = 1.5
    data["nodes"][1]["isBackwardNode"] = 2
    data["edges"][0]["destId"] = 99
    assert problems_of(data) == (
        "maxFPGAs: missing",
        "edges.0.destId: 99 is no node",
        "nodes.0.colorClass: 1.5 is not a whole number",
        "nodes.0.fpgaLatency: 'fast' is not a number",
        "nodes.1.isBackwardNode: 2 is neither true/1 nor false/0",
    )


def test_edges_of_one_source_must_cost_the_same() -> None:
    data = small_file()
    data["nodes"].append(data["nodes"][1] | {"id": 3})
    data["edges"].append({"sourceId": 7, "destId": 3, "cost": 0.25})
    assert problems_of(data) == ("edges.1.cost: 0.25, but an earlier edge of source 7 has 0.5",)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nodes": None}, "nodes: a list is needed"),
        ({"edges": [3]}, "edges.0: expected a mapping of fields"),
        ({"maxCPUs": -1}, "maxCPUs: -1 is not a whole number of 0 or more"),
        ({"maxFPGAs": 1.5}, "maxFPGAs: 1.5 is not a whole number of 0 or more"),
        ({"maxSizePerFPGA": float("nan")}, "maxSizePerFPGA: nan is not a number"),
    ],
)
def test_a_broken_field_is_named(change: dict[str, Any], problem: str) -> None:
    assert problem in problems_of(small_file() | change)


def test_a_repeated_id_and_a_circle_are_errors() -> None:
    data = small_file()
    data["nodes"][1]["id"] = 7
    assert problems_of(data)[0] == "nodes.1.id: 7 is taken by nodes.0"
    data = small_file()
    data["edges"].append({"sourceId": 2, "destId": 7, "cost": 0})
    assert problems_of(data) == ("edges: they close a circle",)


def test_what_is_no_json_object_is_an_error(tmp_path: Path) -> None:
    assert problems_of([]) == ("expected a mapping of fields, got list",)
    path = tmp_path / "broken.json"
    path.write_text('{"nodes":\n [}')
    with pytest.raises(DocumentError, match=r"broken\.json: line 2: "):
        load_dnn_partitioning(path)
    with pytest.raises(HeterpsError, match="cannot be read"):
        load_dnn_partitioning(tmp_path / "missing.json")
