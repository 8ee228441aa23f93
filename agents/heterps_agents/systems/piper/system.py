"""The system `piper`: stages, replicas and recomputation for equal devices, as a plan of ours.

Tensor parallelism is left out: a stage of our plans runs on one device. A layer that recomputes
keeps what enters it and does its forward pass twice. All devices talk over one bandwidth, that of
the slowest link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import PERIOD, OwnCost, System, SystemAnswer
from heterps_agents.systems.devices import link_inside, why_unequal
from heterps_agents.systems.piper.planner import PiperStage, plan_graph
from heterps_configs.importers.piper import PiperConfiguration, PiperEdge, PiperGraph, PiperNode
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of

_PLAIN, _RECOMPUTE = "plain", "recompute"


@register("piper")
class Piper(System):
    """The plan with the least seconds per micro-batch under Piper's cost and memory."""

    name = "piper"

    def why_not(self, problem: Problem) -> str | None:
        """Its devices are all alike."""
        return why_unequal(problem)

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Its stages over the devices in their order, replicas in turns."""
        budget.spend()
        found = plan_graph(_graph_of(problem))
        chain = tuple(_columns(found.stages, [d.name for d in problem.cluster.devices]))
        stages, pipelines = routed([chain], [range(problem.job.num_micro_batches)])
        plan = plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)
        return SystemAnswer(plan, OwnCost(found.seconds_per_sample, PERIOD))


def _graph_of(problem: Problem) -> PiperGraph:
    """The layers in a row; one sample of Piper's is a micro-batch of ours."""
    tables = problem.tables
    names = [device.name for device in problem.cluster.devices]
    link = link_inside(problem, names)
    last = tables.num_layers - 1
    nodes = []
    for index, layer in enumerate(problem.profile.layers):
        forward_s, backward_s = tables.forward_s[index, 0], tables.backward_s[index, 0]
        enters = {index - 1: 0.0} if index else {}
        leaves = {index + 1: 0.0} if index < last else {}
        kept = float(tables.activation_bytes[index])
        entered = float(tables.output_bytes[index - 1]) if index else 0.0
        plain = PiperConfiguration(
            _PLAIN,
            float(forward_s + backward_s),
            float(tables.gradient_bytes[index]),
            kept,
            float(tables.state_bytes[index]),
            enters,
            leaves,
        )
        again = plain._replace(
            name=_RECOMPUTE,
            seconds=plain.seconds + float(forward_s),
            memory_bytes_in_flight=min(kept, entered),
            # A stage of Piper's runs its forward pass again as a whole: all of it is held once.
            memory_bytes=plain.memory_bytes + kept,
        )
        nodes.append(PiperNode(layer.name, {1: (plain, again)}))
    return PiperGraph(
        nodes=tuple(nodes),
        edges=tuple(
            PiperEdge(index, index + 1, float(tables.output_bytes[index])) for index in range(last)
        ),
        num_devices=len(names),
        memory_bytes=float(tables.memory_bytes.min()),
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s if link else math.inf,
        batch_size=tables.num_micro_batches,
    )


def _columns(stages: Sequence[PiperStage], names: Sequence[str]) -> list[Column]:
    columns: list[Column] = []
    taken = 0
    for stage in stages:
        again = [
            layer
            for layer, way in zip(stage.nodes, stage.configurations, strict=True)
            if way == _RECOMPUTE
        ]
        devices = tuple(names[taken : taken + stage.replicas])
        columns.append(Column(stage.nodes[0], stage.nodes[-1], devices, tuple(again)))
        taken += stage.replicas
    return columns
