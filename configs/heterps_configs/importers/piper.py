"""Imports Piper's inputs (msr-fiddle/piper): a graph whose nodes run in several ways.

A node has, for each tensor-parallel degree, up to two configurations: plain, and recomputing its
activations in the backward pass. Times are taken as given (seconds in the transformer inputs), and
so is the bandwidth beside them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from heterps_configs.importers.json_entry import Entry, whole_number_key


class PiperConfiguration(NamedTuple):
    """One way to run a node on a tensor-parallel group.

    Attributes:
        seconds: Forward and backward pass of one sample.
        parameter_bytes: On each device of the group.
        memory_bytes_in_flight: For each micro-batch in flight.
        memory_bytes: Whatever is in flight.
        bytes_from: Extra bytes when the edge from a node (by index) crosses stages.
        bytes_to: The same for the edge to a node.
    """

    name: str
    seconds: float
    parameter_bytes: float
    memory_bytes_in_flight: float
    memory_bytes: float
    bytes_from: dict[int, float]
    bytes_to: dict[int, float]


@dataclass(frozen=True)
class PiperNode:
    """One node; its configurations by tensor-parallel degree."""

    name: str
    configurations: dict[int, tuple[PiperConfiguration, ...]]


class PiperEdge(NamedTuple):
    """An edge between two nodes, by index, and the bytes that it carries."""

    source: int
    target: int
    num_bytes: float


@dataclass(frozen=True)
class PiperGraph:
    """Nodes and edges with the machine that the file names.

    Attributes:
        batch_size: Micro-batches of one batch.
    """

    nodes: tuple[PiperNode, ...]
    edges: tuple[PiperEdge, ...]
    num_devices: int
    memory_bytes: float
    bandwidth_bytes_per_s: float
    batch_size: int


def load_graph(path: str | os.PathLike[str]) -> PiperGraph:
    """Reads one input.

    Raises:
        DocumentError: The file is malformed, an edge leads nowhere, or the graph has a cycle.
        HeterpsError: The file cannot be read.
    """
    top = Entry.from_json(path)
    entries = top["nodes"].entries()
    if not entries:
        top["nodes"].fail("has no nodes")
    index_of: dict[int, int] = {}
    for index, entry in enumerate(entries):
        number = entry["id"].integer()
        if number in index_of:
            entry["id"].fail(f"{number} is taken by nodes.{index_of[number]}")
        index_of[number] = index
    edges = tuple(
        PiperEdge(
            _node_index(edge["sourceId"], index_of),
            _node_index(edge["destId"], index_of),
            edge["communicationCost"].number(),
        )
        for edge in top["edges"].entries()
    )
    _refuse_cycles(top["edges"], len(entries), edges)
    return PiperGraph(
        tuple(_read_node(entry, index, index_of, edges) for index, entry in enumerate(entries)),
        edges,
        top["maxDevices"].integer(minimum=1),
        top["maxMemoryPerDevice"].number(above=True),
        top["bandwidth"].number(above=True),
        top["mbsInBatch"].integer(minimum=1),
    )


def _node_index(entry: Entry, index_of: dict[int, int]) -> int:
    number = entry.integer()
    if number not in index_of:
        entry.fail(f"there is no node with the id {number}")
    return index_of[number]


def _refuse_cycles(entry: Entry, num_nodes: int, edges: tuple[PiperEdge, ...]) -> None:
    waiting = [0] * num_nodes
    for edge in edges:
        waiting[edge.target] += 1
    ready = [node for node in range(num_nodes) if not waiting[node]]
    for node in ready:
        for edge in edges:
            if edge.source == node:
                waiting[edge.target] -= 1
                if not waiting[edge.target]:
                    ready.append(edge.target)
    if len(ready) != num_nodes:
        entry.fail("the graph has a cycle")


def _read_node(
    entry: Entry, index: int, index_of: dict[int, int], edges: tuple[PiperEdge, ...]
) -> PiperNode:
    before = {edge.source for edge in edges if edge.target == index}
    behind = {edge.target for edge in edges if edge.source == index}
    ways = entry["TMPCs"]
    configurations = {
        whole_number_key(ways, degree, "tensor-parallel degree"): tuple(
            _read_configuration(way, index_of, before, behind) for way in listed.entries()
        )
        for degree, listed in ways.items()
    }
    name = entry["name"].text() if entry.has("name") else str(entry["id"].value)
    return PiperNode(name, configurations)


def _read_configuration(
    entry: Entry, index_of: dict[int, int], before: set[int], behind: set[int]
) -> PiperConfiguration:
    return PiperConfiguration(
        entry["id"].text(),
        entry["timePerSample"].number(),
        entry["parameterSize"].number(),
        entry["memoryUsageA"].number(),
        entry["memoryUsageB"].number(),
        _read_bytes(entry["syncTimeFw"], index_of, before),
        _read_bytes(entry["syncTimeBw"], index_of, behind),
    )


def _read_bytes(entry: Entry, index_of: dict[int, int], expected: set[int]) -> dict[int, float]:
    found = {
        index_of[int(key)] if key.isdecimal() and int(key) in index_of else -1: value.number()
        for key, value in entry.items()
    }
    if set(found) != expected:
        entry.fail("must name exactly the neighbours that the edges name")
    return found
