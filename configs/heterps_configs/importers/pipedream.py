"""Profiles of `msr-fiddle/pipedream`: a `graph.txt` to an operator graph.

One line for each item. A line that starts with a tab is an edge, `<source> -- <destination>`. Any
other line is a node:

    <id> -- <description> -- forward_compute_time=<ms>, backward_compute_time=<ms>,
    activation_size=<bytes or [bytes; bytes]>, parameter_size=<bytes>[ -- stage_id=<int>]

Milliseconds there, of one mini-batch; seconds here, forward and backward together. As PipeDream's
optimizer does, sources that are called `Input...` are left out (their time is that of loading
data), and so are sinks called `__getitem__...`.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.documents.yaml_files import read_text
from heterps_configs.errors import DocumentError

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_MILLISECOND = 1e-3


def load_pipedream(path: str | os.PathLike[str], num_accelerators: int = 1) -> OperatorGraph:
    """Reads a profile; the file does not say how many devices there are.

    Raises:
        HeterpsError: The file cannot be read.
        DocumentError: A line is malformed; every problem at once, each with its line.
    """
    source = os.fspath(path)
    return parse_pipedream(read_text(Path(path), source), num_accelerators, source)


def parse_pipedream(
    text: str, num_accelerators: int = 1, source: str = "<memory>"
) -> OperatorGraph:
    """Turns the text of such a file into a graph.

    Raises:
        DocumentError: See `load_pipedream`.
    """
    problems: list[str] = []
    nodes: dict[str, dict[str, Any]] = {}
    edges: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"line {number}"
        if not line.strip():
            continue
        parts = line.strip().split(" -- ")
        if line.startswith("\t"):
            if len(parts) != 2:
                problems.append(f"{where}: an edge is '<source> -- <destination>'")
            else:
                edges.setdefault((parts[0], parts[1]), number)
        elif len(parts) not in (3, 4):
            problems.append(f"{where}: a node is '<id> -- <description> -- <numbers>'")
        elif parts[0] in nodes:
            problems.append(f"{where}: the node {parts[0]!r} stands twice")
        else:
            nodes[parts[0]] = _node(parts, where, problems)
    problems.extend(
        f"line {number}: {end!r} is no node"
        for ends, number in edges.items()
        for end in ends
        if end not in nodes
    )
    if problems:
        raise DocumentError(source, problems)
    kept = _kept(nodes, set(edges))
    index_of = {name: index for index, name in enumerate(kept)}
    return OperatorGraph.from_mapping(
        {
            "name": Path(source).stem,
            "source": f"pipedream: {source}",
            "num_accelerators": num_accelerators,
            "nodes": [nodes[name] for name in kept],
            "edges": [
                (index_of[producer], index_of[consumer])
                for producer, consumer in edges
                if producer in index_of and consumer in index_of
            ],
        },
        source,
    )


def _node(parts: list[str], where: str, problems: list[str]) -> dict[str, Any]:
    """One node, as `OperatorNode` has it."""
    texts: dict[str, str] = {}
    for item in parts[2].split(", "):
        name, _, text = item.partition("=")
        if name.strip() in texts:
            problems.append(f"{where}: {name.strip()} stands twice")
        texts[name.strip()] = text.strip()
    problems.extend(f"{where}: {name} is missing" for name in _FIELDS if name not in texts)
    values = {
        name: _number(texts[name], name, where, problems) for name in _FIELDS if name in texts
    }
    forward_ms, backward_ms, activation, parameters = (values.get(name, 0.0) for name in _FIELDS)
    return {
        "name": parts[1] or parts[0],
        "accelerator_s": (forward_ms + backward_ms) * _MILLISECOND,
        "memory_bytes": activation + parameters,
        "parameter_bytes": parameters,
        "output_bytes": activation,
    }


def _number(text: str, name: str, where: str, problems: list[str]) -> float:
    """A number of 0 or more, or the sum of a list `[a; b]`."""
    items = text[1:-1].split(";") if text.startswith("[") and text.endswith("]") else [text]
    try:
        values = [float(item) for item in items]
    except ValueError:
        values = [math.nan]
    if all(math.isfinite(value) and value >= 0 for value in values):
        return sum(values)
    problems.append(f"{where}: {name}: {text!r} is not a number of 0 or more, or a list of them")
    return 0.0


def _kept(nodes: dict[str, dict[str, Any]], edges: set[tuple[str, str]]) -> list[str]:
    """Nodes without the sources that load data and the sinks that only pick an item."""
    consumers = {consumer for _, consumer in edges}
    inputs = {
        name
        for name, node in nodes.items()
        if name not in consumers and node["name"].startswith("Input")
    }
    producers = {producer for producer, _ in edges if producer not in inputs}
    return [
        name
        for name, node in nodes.items()
        if name not in inputs and (name in producers or not node["name"].startswith("__getitem__"))
    ]
