"""What a plan of blocks and lanes takes, about: by a formula, on its own devices and links.

As in the closed form of chains, a stage begins when a micro-batch can be there, runs all of its
own, and waits for what is behind it; the slowest sets when all passes are over. Then sums that no
pass hides follow, and the optimizer. Between blocks the way of a micro-batch is the average over
their lanes. That orders plans that differ a little; which of them is shorter the simulator says.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from heterps_agents.asymmetric.lane_costs import BlockCost, LaneCosts, Row
from heterps_agents.asymmetric.pipes import EAGER
from heterps_agents.asymmetric.weave import Group, Lane, Part, Weave
from heterps_envs.closed_form.formula import stage_work_s
from heterps_envs.problem import Problem

# Of the time of the slowest part, where parts are cut evenly.
HALVINGS = 12
# Called from Python, one number at a time.
_work_s = getattr(stage_work_s, "py_func", stage_work_s)


class _Entered(NamedTuple):
    """A lane of a plan: its parts, seconds from the front to it, back, and behind it and back."""

    rows: Sequence[Row]
    pipeline: int  # its number where lanes are pipelines; else 0
    in_s: float
    out_s: float
    behind_s: float


class Estimates:
    """Of plans for one problem.

    Args:
        problem: What was asked.
        room: Memory is so many times what the rule of planners leaves.

    Attributes:
        lacked_room: Whether any plan was found to have no room somewhere.
    """

    def __init__(self, problem: Problem, room: float = 1.0) -> None:
        self._problem, self._costs, self._room = problem, LaneCosts(problem), room
        self.lacked_room = False
        self._is_gpipe = problem.tables.is_gpipe
        self._eager = EAGER if problem.job.schedule == "1f1b" else 0

    @property
    def num_micro_batches(self) -> int:
        """Of a step."""
        return self._problem.job.num_micro_batches

    def step_s(self, weave: Weave) -> float:
        """Seconds of a step; inf where a device has no room for what it must hold."""
        blocks = [
            self._costs.block(block, first, weave.sharded)
            for block, first in zip(weave.blocks, weave.starts, strict=False)
        ]
        lanes = list(self._entered(weave, blocks))
        held = iter(self._held(lanes))
        passed_s = 0.0
        for lane in lanes:
            for row in lane.rows:
                own = self._in_flight(row, next(held))
                if own == 0:
                    self.lacked_room = True
                    return math.inf
                round_s = lane.behind_s + row.behind_s
                work_s = _work_s(row.forward_s, row.backward_s, round_s, row.share, own)
                ends_s = lane.in_s + row.in_s + max(work_s, row.link_s) + lane.out_s + row.out_s
                passed_s = max(passed_s, ends_s)
        longest_s = passed_s
        for lane in lanes:
            for row in lane.rows:
                # What its own last backward pass does not hide, and at least the last layer's.
                last_s = row.summed_s / (row.stop - row.first)
                after_s = max(row.summed_s - row.backward_s, last_s) + row.optimizer_s
                longest_s = max(longest_s, passed_s - lane.out_s - row.out_s + after_s)
        return longest_s

    def lane_s(self, lane: Lane, first: int) -> tuple[float, float]:
        """Seconds of a lane's first micro-batch, and of each one more."""
        rows = self._costs.lane(lane, first)
        end = rows[-1]
        fill_s = end.in_s + end.forward_s + end.out_s + end.backward_s
        return fill_s, max((row.forward_s + row.backward_s) / row.replicas for row in rows)

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
        pair = self._costs.column(part._replace(groups=(group,))), self._costs.column(part)
        front, back = pair if is_front else pair[::-1]

        def longest(cut: int) -> float:
            return max(front.seconds(first, cut), back.seconds(cut, part.stop))

        low, high = first + 1, part.stop - 1
        while low < high:
            middle = (low + high) // 2
            is_enough = front.seconds(first, middle) >= back.seconds(middle, part.stop)
            low, high = (low, middle) if is_enough else (middle + 1, high)
        return min((cut for cut in (low - 1, low) if cut > first), key=longest)

    def evenly_cut(self, parts: Sequence[Part], first: int) -> list[Part]:
        """Parts of a lane cut so that the slowest takes as little as can be, by halving that.

        Args:
            parts: From a layer on; the end of the last one stays.
            first: That layer.
        """
        if len(parts) < 2:
            return list(parts)
        columns = [self._costs.column(part) for part in parts]
        replicas = [len(part.groups) for part in parts]
        stop = parts[-1].stop
        own = [first, *(part.stop for part in parts)]
        high = max(
            column.seconds(own[i], own[i + 1]) / replicas[i] for i, column in enumerate(columns)
        )
        low, best = 0.0, own[1:]
        for _ in range(HALVINGS):
            middle, cuts, at = (low + high) / 2, list[int](), first
            for index, column in enumerate(columns):
                # Each part behind it needs a layer.
                at = column.last_within(at, stop - len(parts) + index + 1, middle * replicas[index])
                cuts.append(at)
            is_enough = at >= stop and all(a < b for a, b in pairwise([first, *cuts]))
            low, high = (low, middle) if is_enough else (middle, high)
            best = cuts if is_enough else best
        return [part._replace(stop=cut) for part, cut in zip(parts, best, strict=True)]

    def _entered(self, weave: Weave, blocks: Sequence[BlockCost]) -> Iterator[_Entered]:
        """All lanes, with the ways to them."""
        entries = [[0.0] * len(weave.blocks[0])]
        for index, behind in enumerate(weave.blocks[1:]):
            front, weights = weave.blocks[index], blocks[index].weights
            entries.append(
                [
                    sum(
                        weight * self._costs.message_s(each.parts[-1], lane.parts[0])
                        for weight, each in zip(weights, front, strict=True)
                    )
                    for lane in behind
                ]
            )
        messages = [
            sum(weight * entry for weight, entry in zip(block.weights, own, strict=True))
            for block, own in zip(blocks, entries, strict=True)
        ]
        rest_s = sum(block.forward_s + block.backward_s for block in blocks) + 2 * sum(messages)
        in_s = out_s = 0.0
        for block, own, message in zip(blocks, entries, messages, strict=True):
            rest_s -= block.forward_s + block.backward_s + 2 * message
            for index, (rows, entry) in enumerate(zip(block.lanes, own, strict=True)):
                pipeline = index if len(blocks) == 1 else 0
                yield _Entered(rows, pipeline, in_s + entry, out_s + entry, rest_s)
            in_s, out_s = in_s + block.forward_s + message, out_s + block.backward_s + message

    def _in_flight(self, row: Row, held: int) -> int:
        """Micro-batches that a replica may hold; 0 where it has no room for those that it must."""
        room = self._room * row.room_bytes - row.state_bytes
        held = min(held, row.share)
        if held * row.kept_bytes > room:
            return 0
        eager = min(held + self._eager, row.share)
        return eager if eager * row.kept_bytes <= room else held

    def _held(self, lanes: Sequence[_Entered]) -> list[int]:
        """By the rule of the schedule, see `heterps_envs.schedule.in_flight`."""
        if self._is_gpipe:
            return [row.share for lane in lanes for row in lane.rows]
        alike, begins = Counter[tuple[int, int, int]](), dict[int, list[int]]()
        for lane in lanes:
            own = begins.setdefault(lane.pipeline, [])
            for row in lane.rows:
                alike[lane.pipeline, row.first, row.stop] += row.replicas
                own += [row.first] * row.replicas
        for own in begins.values():
            own.sort()
        held = []
        for lane in lanes:
            own = begins[lane.pipeline]
            for row in lane.rows:
                replicas = alike[lane.pipeline, row.first, row.stop]
                behind = len(own) - bisect_left(own, row.stop)
                held.append(-(-(replicas + behind) // replicas))
        return held
