"""What a plan of blocks and lanes takes, about: by a formula, on its own devices and links.

As in the closed form of chains, a stage begins when a micro-batch can be there, runs all of its
own, and waits for what is behind it; the slowest sets when all passes are over. Then sums that no
pass hides follow, and the optimizer. Between blocks the way of a micro-batch is the average over
their lanes. That orders plans that differ a little; which of them is shorter the simulator says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from heterps_agents.asymmetric.lane_costs import LaneCosts
from heterps_agents.asymmetric.weave import Block, Group, Part, Weave
from heterps_envs.lanes.cuts import cut_evenly, even_cut
from heterps_envs.lanes.step import lane_rates_s, lanes_step_s
from heterps_envs.problem import Problem


class Estimates:
    """Of plans for one problem.

    Args:
        problem: What was asked.
        room: Memory is so many times what the rule of planners leaves.

    Attributes:
        lacked_room: Whether any plan was found to have no room somewhere.
    """

    def __init__(self, problem: Problem, room: float = 1.0) -> None:
        self._problem, self._room = problem, room
        self._costs = LaneCosts(problem)
        self.lacked_room = False

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a step."""
        return self._problem.job.num_micro_batches

    def step_s(self, weave: Weave) -> float:
        """Seconds of a step; inf where a device has no room for what it must hold."""
        plan, sharded = self._costs.plan(weave), self._costs.sharded(weave.sharded)
        step_s: float = lanes_step_s(self._costs.tables, plan, sharded, self._room)
        if step_s < 0:
            self.lacked_room = True
            return math.inf
        return step_s

    def lane_rates_s(self, block: Block, first: int) -> tuple[list[float], list[float]]:
        """Seconds of the first micro-batch of each lane of a block, and of each one more.

        Args:
            block: Whose lanes.
            first: Its first layer.
        """
        rates_s, numbers = np.empty((2, len(block))), self._costs.block(block)
        lane_rates_s(self._costs.tables, numbers, first, rates_s)
        fill_s, each_s = rates_s.tolist()
        return fill_s, each_s

    def kind(self, group: Group) -> tuple[int, str, int]:
        """What makes groups equal: class, node, and number of devices."""
        name = group[0]
        return self._problem.class_of[name], self._problem.device_named[name].node, len(group)

    def like(self, node: str) -> str:
        """The first node that equals a node."""
        return self._problem.equal_nodes[node]

    def even_cut(self, first: int, part: Part, group: Group, *, is_front: bool) -> int | None:
        """Where a part is divided so that both halves take about as long; None: it is one layer.

        Args:
            first: Its first layer.
            part: What is divided.
            group: What has the other half.
            is_front: The other half is the front one.
        """
        if part.stop - first < 2:
            return None
        other, own = (self._costs.column(each, part.memory) for each in (group, part.groups[0]))
        front, back = (other, own) if is_front else (own, other)
        cut: int = even_cut(self._costs.tables, front, back, first, part.stop)
        return cut

    def evenly_cut(self, parts: Sequence[Part], first: int) -> list[Part]:
        """Parts of a lane cut so that the slowest takes as little as can be, by halving that.

        Args:
            parts: From a layer on; the end of the last one stays.
            first: That layer.
        """
        if len(parts) < 2:
            return list(parts)
        columns = np.array([self._costs.column(part.groups[0], part.memory) for part in parts])
        replicas = np.array([len(part.groups) for part in parts])
        edges = np.array([first, *(part.stop for part in parts)])
        cut_evenly(self._costs.tables, columns, replicas, edges, np.empty_like(edges))
        stops = edges[1:].tolist()
        return [part._replace(stop=stop) for part, stop in zip(parts, stops, strict=True)]
