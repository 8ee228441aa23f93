"""The system `pipeedge`: the chain with the least bottleneck over unlike devices, as a plan.

PipeEdge schedules pipelines that only infer. For a training step, a layer's seconds here are those
of its forward and backward pass, and it holds its training state and the activations of one
micro-batch; that a device of a training pipeline holds several of them is beyond the method.
"""

from __future__ import annotations

import numpy as np

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import PERIOD, OwnCost, System, SystemAnswer
from heterps_agents.systems.pipeedge.chain_bottleneck import Chain, split_chain
from heterps_agents.systems.pipeedge.problem import BUFFERS
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind


@register("pipeedge")
class PipeEdge(System):
    """One stage for each device that is used, in any order of the devices; no replicas."""

    name = "pipeedge"

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The chain with the least slowest stage or message."""
        budget.spend()
        found = split_chain(_chain_of(problem))
        placement = [
            PlacedStage(stage.first_layer, stage.end_layer - 1, stage.device_class)
            for stage in found.stages
        ]
        plan = bind(problem, placement, planner=self.name, seed=self.seed)
        return SystemAnswer(plan, OwnCost(found.bottleneck_s, PERIOD))


def _chain_of(problem: Problem) -> Chain:
    """The layers with their seconds, bytes and links, between the classes of devices."""
    tables = problem.tables
    inverse_s = tables.inverse_bandwidth_s_per_byte
    return Chain(
        seconds=tables.compute_s,
        memory_bytes=tables.state_bytes + tables.activation_bytes,
        cut_bytes=np.concatenate(([0.0], tables.output_bytes)),
        buffers=BUFFERS,
        counts=tables.device_count,
        capacity_bytes=tables.memory_bytes,
        # A class of one device has no link to itself, and never needs it.
        bandwidth_bytes_per_s=1 / np.where(inverse_s > 0, inverse_s, 1.0),
    )
