"""Piper's importer: nodes by index, and errors that name the place."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_configs.errors import DocumentError
from heterps_configs.importers.piper import PiperGraph, load_graph


def way(before: dict[str, float], behind: dict[str, float]) -> dict[str, Any]:
    """One configuration of a node."""
    return {
        "id": "vanilla",
        "timePerSample": 0.5,
        "parameterSize": 1,
        "memoryUsageA": 2,
        "memoryUsageB": 3,
        "syncTimeFw": before,
        "syncTimeBw": behind,
    }


SMALL: dict[str, Any] = {
    "maxDevices": 2,
    "maxMemoryPerDevice": 100.0,
    "bandwidth": 10.0,
    "mbsInBatch": 4,
    "nodes": [
        {"id": 40, "name": "back", "TMPCs": {"1": [way({"7": 5}, {})]}},
        {"id": 7, "TMPCs": {"1": [way({}, {"40": 6})], "2": []}},
    ],
    "edges": [{"sourceId": 7, "destId": 40, "communicationCost": 8}],
}


def load(tmp_path: Path, content: Any) -> PiperGraph:
    """The graph of a file with this content."""
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(content))
    return load_graph(file)


def test_nodes_are_named_by_their_index_and_not_by_their_id(tmp_path: Path) -> None:
    graph = load(tmp_path, SMALL)
    assert graph.edges == ((1, 0, 8),)
    assert [node.name for node in graph.nodes] == ["back", "7"]
    (found,) = graph.nodes[0].configurations[1]
    assert (found.seconds, found.bytes_from, found.bytes_to) == (0.5, {1: 5}, {})
    assert (graph.num_devices, graph.memory_bytes, graph.batch_size) == (2, 100, 4)


def _twice(content: Any) -> None:
    content["nodes"][1]["id"] = 40


def _nowhere(content: Any) -> None:
    content["edges"][0]["destId"] = 9


def _forgotten(content: Any) -> None:
    content["nodes"][0]["TMPCs"]["1"][0]["syncTimeFw"] = {}


def _cycle(content: Any) -> None:
    content["edges"].append({"sourceId": 40, "destId": 7, "communicationCost": 1})


def _negative(content: Any) -> None:
    content["nodes"][0]["TMPCs"]["1"][0]["memoryUsageA"] = -1


def _empty(content: Any) -> None:
    content["nodes"] = []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_twice, r"nodes\.1\.id: 40 is taken by nodes\.0"),
        (_nowhere, r"edges\.0\.destId: there is no node with the id 9"),
        (_forgotten, r"syncTimeFw: must name exactly the neighbours"),
        (_cycle, "edges: the graph has a cycle"),
        (_negative, r"nodes\.0\.TMPCs\.1\.0\.memoryUsageA: must be at least 0, got -1"),
        (_empty, "nodes: has no nodes"),
    ],
)
def test_a_malformed_graph_is_named_with_its_place(
    tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    content = copy.deepcopy(SMALL)
    change(content)
    with pytest.raises(DocumentError, match=message):
        load(tmp_path, content)
