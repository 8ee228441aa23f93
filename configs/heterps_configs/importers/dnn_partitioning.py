"""Workloads of `msr-fiddle/dnn-partitioning` (Tarnawski et al., NeurIPS 2020): JSON to a graph.

Latencies and transfer costs are milliseconds there ("FPGA" means any accelerator) and seconds here;
every number is taken as given. Transfer costs stand on the edges, but belong to the node that
sends: the edges of one source must agree.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.documents.yaml_files import parse_json, read_text
from heterps_configs.errors import DocumentError

_MILLISECOND = 1e-3
# The published program's own tolerance for edges of one source.
_SAME_COST_MS = 1e-6


def load_dnn_partitioning(path: str | os.PathLike[str]) -> OperatorGraph:
    """Reads a file of `throughput-inputs` or `latency-inputs`.

    Raises:
        HeterpsError: The file cannot be read.
        DocumentError: It is not JSON, or lacks a field, or is inconsistent; every problem at once.
    """
    source = os.fspath(path)
    return parse_dnn_partitioning(parse_json(read_text(Path(path), source), source), source)


def parse_dnn_partitioning(data: Any, source: str = "<memory>") -> OperatorGraph:
    """Turns the content of such a file into a graph.

    Args:
        data: What the JSON file holds.
        source: What error messages and the graph call it.

    Raises:
        DocumentError: See `load_dnn_partitioning`.
    """
    problems: list[str] = []
    if not isinstance(data, dict):
        raise DocumentError(source, [f"expected a mapping of fields, got {type(data).__name__}"])
    capacity = _number(data, "maxSizePerFPGA", "", problems)
    accelerators = _number(data, "maxFPGAs", "", problems, whole=True)
    cpus = _number(data, "maxCPUs", "", problems, whole=True)
    nodes, edges = (_entries(data, field, problems) for field in ("nodes", "edges"))
    index_of: dict[int, int] = {}
    for index, node in enumerate(nodes):
        identifier = int(_number(node, "id", f"nodes.{index}.", problems, whole=True))
        if index_of.setdefault(identifier, index) != index:
            taken = f"nodes.{index_of[identifier]}"
            problems.append(f"nodes.{index}.id: {identifier} is taken by {taken}")
    pairs, cost_ms = _edges(edges, index_of, problems)
    documents = [
        _node(node, cost_ms.get(index, 0.0), f"nodes.{index}.", problems)
        for index, node in enumerate(nodes)
    ]
    if problems:
        raise DocumentError(source, problems)
    return OperatorGraph.from_mapping(
        {
            "name": Path(source).stem,
            "source": f"dnn-partitioning: {source}",
            "num_accelerators": int(accelerators),
            "num_cpus": int(cpus),
            "accelerator_memory_bytes": capacity,
            "nodes": documents,
            "edges": pairs,
        },
        source,
    )


def _node(
    node: Mapping[str, Any], cost_ms: float, where: str, problems: list[str]
) -> dict[str, Any]:
    """One node, as `OperatorNode` has it."""
    color = node.get("colorClass")
    if color is not None and (isinstance(color, bool) or not isinstance(color, int)):
        problems.append(f"{where}colorClass: {color!r} is not a whole number")
    return {
        "name": str(node.get("name", node.get("id"))),
        "accelerator_s": _number(node, "fpgaLatency", where, problems) * _MILLISECOND,
        "cpu_s": _number(node, "cpuLatency", where, problems) * _MILLISECOND,
        "memory_bytes": _number(node, "size", where, problems) if "size" in node else 0.0,
        "communication_s": cost_ms * _MILLISECOND,
        "is_backward": _flag(node, "isBackwardNode", where, problems),
        "color_class": color,
        "supported_on_accelerator": _flag(node, "supportedOnFpga", where, problems),
    }


def _edges(
    edges: list[Mapping[str, Any]], index_of: Mapping[int, int], problems: list[str]
) -> tuple[list[tuple[int, int]], dict[int, float]]:
    """Pairs of indices, and the transfer milliseconds of each source."""
    pairs: list[tuple[int, int]] = []
    cost_ms: dict[int, float] = {}
    for index, edge in enumerate(edges):
        where = f"edges.{index}."
        ends = []
        for field in ("sourceId", "destId"):
            identifier = edge.get(field)
            if not isinstance(identifier, int) or identifier not in index_of:
                problems.append(f"{where}{field}: {identifier!r} is no node")
            else:
                ends.append(index_of[identifier])
        cost = _number(edge, "cost", where, problems)
        if len(ends) == 2:
            pairs.append((ends[0], ends[1]))
            known = cost_ms.setdefault(ends[0], cost)
            if abs(known - cost) > _SAME_COST_MS:
                problems.append(
                    f"{where}cost: {cost:g}, but an earlier edge of source {edge['sourceId']}"
                    f" has {known:g}"
                )
    return pairs, cost_ms


def _entries(data: Mapping[str, Any], field: str, problems: list[str]) -> list[Mapping[str, Any]]:
    """The list of mappings at `field`."""
    entries = data.get(field)
    if not isinstance(entries, list):
        problems.append(f"{field}: a list is needed" if field in data else f"{field}: missing")
        return []
    broken = [index for index, entry in enumerate(entries) if not isinstance(entry, dict)]
    problems.extend(f"{field}.{index}: expected a mapping of fields" for index in broken)
    return [entry for entry in entries if isinstance(entry, dict)] if not broken else []


def _number(
    data: Mapping[str, Any], field: str, where: str, problems: list[str], whole: bool = False
) -> float:
    """The non-negative number at `field`; 0 after noting a problem."""
    value = data.get(field)
    if field not in data:
        problems.append(f"{where}{field}: missing")
    elif isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        problems.append(f"{where}{field}: {value!r} is not a number")
    elif value < 0 or (whole and value != int(value)):
        kind = "whole number of 0 or more" if whole else "number of 0 or more"
        problems.append(f"{where}{field}: {value!r} is not a {kind}")
    else:
        return value
    return 0


def _flag(data: Mapping[str, Any], field: str, where: str, problems: list[str]) -> bool:
    """The truth value at `field`, which files write as true/false or 1/0."""
    value = data.get(field)
    if value not in (0, 1):
        text = f"{value!r} is neither true/1 nor false/0" if field in data else "missing"
        problems.append(f"{where}{field}: {text}")
    return bool(value)
