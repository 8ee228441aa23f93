"""The system `pipedream`: its hierarchical split of a model over equal machines, as a plan of ours.

Its pipeline is fed with minibatches and sums the gradients of each; a micro-batch of ours is one of
them. Our steps sum gradients once for all of their micro-batches, so replicas are cheaper here than
it believes. It does not count memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import PERIOD, OwnCost, System, SystemAnswer
from heterps_agents.systems.devices import link_inside, nodes_of, slowest_link, why_unequal
from heterps_agents.systems.pipedream.planner import PipelineStage, split_hierarchical
from heterps_configs.documents.operator_graph import OperatorGraph, OperatorNode
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of


@register("pipedream")
class PipeDream(System):
    """Stages and their replicas by PipeDream's optimizer; equal devices on equal nodes only."""

    name = "pipedream"

    def why_not(self, problem: Problem) -> str | None:
        """Its machines are all alike."""
        sizes = [len(names) for names in nodes_of(problem)]
        if len(set(sizes)) > 1:
            uneven = f"needs nodes of equally many devices; they have {sizes}"
            return why_unequal(problem) or uneven
        return why_unequal(problem)

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The split with the fastest slowest stage, its replicas in turns."""
        budget.spend()
        units, bandwidths = _levels(problem)
        found = split_hierarchical(_graph_of(problem), units, bandwidths)
        nodes = nodes_of(problem)
        # With one level, every device is a unit of it.
        machines = nodes if len(units) > 1 else [[name] for names in nodes for name in names]
        chain = tuple(_columns(found.stages, machines))
        stages, pipelines = routed([chain], [range(problem.job.num_micro_batches)])
        plan = plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)
        return SystemAnswer(plan, OwnCost(found.stage_time_s, PERIOD))


def _levels(problem: Problem) -> tuple[list[int], list[float]]:
    """Units and bandwidth of each level that has several units, the lowest first."""
    nodes = nodes_of(problem)
    inside = link_inside(problem, nodes[0])
    between = slowest_link(problem, [(nodes[0][0], names[0]) for names in nodes[1:]])
    levels = [
        (count, link.bandwidth_bytes_per_s)
        for count, link in ((len(nodes[0]), inside), (len(nodes), between))
        if link is not None
    ]
    counts, bandwidths = zip(*(levels or [(1, math.inf)]), strict=True)
    return list(counts), list(bandwidths)


def _graph_of(problem: Problem) -> OperatorGraph:
    """The layers in a row, with the seconds of a micro-batch and the bytes of their gradients."""
    tables = problem.tables
    return OperatorGraph(
        name=problem.profile.name,
        num_accelerators=len(problem.cluster.devices),
        nodes=tuple(
            OperatorNode(name=layer.name, accelerator_s=seconds, parameter_bytes=num_bytes)
            for layer, seconds, num_bytes in zip(
                problem.profile.layers, tables.compute_s[:, 0], tables.gradient_bytes, strict=True
            )
        ),
        edges=tuple((layer, layer + 1) for layer in range(tables.num_layers - 1)),
    )


def _columns(stages: Sequence[PipelineStage], machines: Sequence[Sequence[str]]) -> list[Column]:
    """Machines and their devices, handed out from the front.

    A micro-batch takes a machine in turns, and in it a device in turns: replica k is machine
    `k mod machines`.
    """
    columns: list[Column] = []
    taken = 0
    for stage in stages:
        units = machines[taken : taken + stage.replicas]
        taken += stage.replicas
        place = 0
        for inner in stage.stages or (replace(stage, replicas=1),):
            places = range(place, place + inner.replicas)
            devices = tuple(unit[index] for index in places for unit in units)
            columns.append(Column(min(inner.nodes), max(inner.nodes), devices))
            place += inner.replicas
    return columns
