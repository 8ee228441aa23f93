"""Operator graphs: the nodes of a model's dataflow with their seconds and bytes, before layers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from pydantic import Field, model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import Amount, Count, Name, PositiveCount, Whole
from heterps_configs.problems import InconsistentError


class OperatorNode(Document):
    """One operator (or layer) of the graph.

    Attributes:
        name: For people; not necessarily unique.
        accelerator_s: Amount on one accelerator.
        cpu_s: Amount on one CPU; None: it runs on accelerators only.
        memory_bytes: Taken on the accelerator that runs it.
        communication_s: Amount to move its output between an accelerator and the host, each way.
        is_backward: Belongs to the backward pass.
        color_class: Nodes of one class must share a device (a forward node and its backward twin,
            an operator and its weights); None: free.
        parameter_bytes: Weights, where the source tells them from other memory.
        output_bytes: Size of its output, where the source says.
        supported_on_accelerator: False: it runs on CPUs only.
    """

    name: Name
    accelerator_s: Amount
    cpu_s: Amount | None = None
    memory_bytes: Amount = 0
    communication_s: Amount = 0
    is_backward: bool = False
    color_class: Whole | None = None
    parameter_bytes: Amount = 0
    output_bytes: Amount = 0
    supported_on_accelerator: bool = True


class OperatorGraph(Document):
    """A directed acyclic graph of operators, and the devices that its source splits it over.

    Attributes:
        name: What tables call it.
        source: Where it came from: format and file.
        num_accelerators: How many equal accelerators there are.
        num_cpus: How many equal CPUs there are.
        accelerator_memory_bytes: Memory of one accelerator; None: no limit.
        edges: Pairs (producer, consumer) of indices into `nodes`, which need not be in execution
            order.
    """

    name: Name
    source: str = ""
    num_accelerators: PositiveCount
    num_cpus: Count = 0
    accelerator_memory_bytes: Amount | None = None
    nodes: tuple[OperatorNode, ...] = Field(min_length=1)
    edges: tuple[tuple[Whole, Whole], ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems = []
        for index, edge in enumerate(self.edges):
            if not all(0 <= end < len(self.nodes) for end in edge):
                allowed = f"0 .. {len(self.nodes) - 1}"
                problems.append(f"edges.{index}: {list(edge)} names no node ({allowed})")
            elif edge[0] == edge[1]:
                problems.append(f"edges.{index}: leads from a node to itself")
        if not problems and len(execution_order(len(self.nodes), self.edges)) < len(self.nodes):
            problems.append("edges: they close a circle")
        for index, node in enumerate(self.nodes):
            if node.cpu_s is None and not node.supported_on_accelerator:
                problems.append(f"nodes.{index}: runs neither on accelerators nor on CPUs")
        if problems:
            raise InconsistentError(problems)
        return self


def execution_order(num_nodes: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Nodes, every producer before its consumers; nodes on circles and behind are left out."""
    consumers: list[list[int]] = [[] for _ in range(num_nodes)]
    waits_for = [0] * num_nodes
    for producer, consumer in edges:
        consumers[producer].append(consumer)
        waits_for[consumer] += 1
    order = [node for node in range(num_nodes) if waits_for[node] == 0]
    for node in order:
        for consumer in consumers[node]:
            waits_for[consumer] -= 1
            if waits_for[consumer] == 0:
                order.append(consumer)
    return order
