"""What the lanes of one block take and hold, on their own devices and links; found once each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from heterps_agents.asymmetric.weave import Block, Group, Lane, Part
from heterps_envs.arrays import Floats
from heterps_envs.options import Memory, StageOption, option_tables
from heterps_envs.problem import Problem

_Way = tuple[int, int, Memory]


class Column(NamedTuple):
    """Sums over layers, of one device of a group: lists of L + 1 numbers."""

    forward_s: list[float]
    backward_s: list[float]
    optimizer_s: list[float]
    state_bytes: list[float]
    sharded_bytes: list[float]
    kept_bytes: list[float]
    gradient_bytes: list[float]
    room_bytes: float

    def seconds(self, first: int, stop: int) -> float:
        """Of a micro-batch through layers `first .. stop - 1`, forth and back."""
        forward = self.forward_s[stop] - self.forward_s[first]
        return forward + self.backward_s[stop] - self.backward_s[first]

    def last_within(self, first: int, most: int, seconds: float) -> int:
        """The last cut, at most `most`, up to which layers from `first` on take no longer.

        It is `first` where not even one layer does.
        """
        low, high = first, most
        while low < high:
            middle = (low + high + 1) // 2
            is_within = self.seconds(first, middle) <= seconds
            low, high = (middle, high) if is_within else (low, middle - 1)
        return low


class Row(NamedTuple):
    """One part of a lane.

    Attributes:
        first, stop: Its layers, `first .. stop - 1`.
        replicas: Groups that take turns.
        share: Micro-batches of the busiest of them.
        forward_s, backward_s: Of a micro-batch.
        in_s, out_s: From the entry of the lane to its beginning, and back.
        behind_s: From its end through the rest of the lane and back to it.
        link_s: Of its messages to the next part, if nothing else is in the way.
        state_bytes, kept_bytes, room_bytes: Of one device: held at all times, and of each
            micro-batch in flight, and its room.
        summed_s: Of its sums of gradients.
        optimizer_s: Of its optimizer step.
    """

    first: int
    stop: int
    replicas: int
    share: int
    forward_s: float
    backward_s: float
    in_s: float
    out_s: float
    behind_s: float
    link_s: float
    state_bytes: float
    kept_bytes: float
    room_bytes: float
    summed_s: float
    optimizer_s: float


class BlockCost(NamedTuple):
    """One block.

    Attributes:
        lanes: The parts of each lane.
        weights: Of the micro-batches, the share of each lane.
        forward_s, backward_s: Through it, on average over the lanes.
    """

    lanes: tuple[tuple[Row, ...], ...]
    weights: tuple[float, ...]
    forward_s: float
    backward_s: float


class LaneCosts:
    """Of the lanes of plans for one problem.

    Args:
        problem: What was asked.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._output_bytes: list[float] = problem.tables.output_bytes.tolist()
        self._columns: dict[_Way, Column] = {}
        self._lanes: dict[tuple[Lane, int], tuple[Row, ...]] = {}
        self._blocks: dict[tuple[Block, int, frozenset[int]], BlockCost] = {}
        self._messages: dict[tuple[tuple[Group, ...], tuple[Group, ...]], tuple[float, float]] = {}
        self._rings: dict[frozenset[str], tuple[float, float]] = {}
        self._order = {name: index for index, name in enumerate(problem.device_named)}

    def block(self, block: Block, first: int, sharded: frozenset[int]) -> BlockCost:
        """What a block that begins with a layer takes."""
        key = block, first, sharded
        if key not in self._blocks:
            self._blocks[key] = self._block(block, first, sharded)
        return self._blocks[key]

    def lane(self, lane: Lane, first: int) -> tuple[Row, ...]:
        """The parts of a lane that begins with a layer, as if nobody else held its layers."""
        key = lane, first
        if key not in self._lanes:
            self._lanes[key] = self._rows(lane, first)
        return self._lanes[key]

    def message_s(self, front: Part, behind: Part) -> float:
        """Seconds of a message between two parts, on average over their replicas."""
        latency, per_byte = self._message(front, behind)
        return latency + self._output_bytes[front.stop - 1] * per_byte

    def column(self, part: Part) -> Column:
        """What layers take on the devices of a part."""
        group = part.groups[0]
        way = self._problem.class_of[group[0]], len(group), part.memory
        if way not in self._columns:
            self._columns[way] = _column(self._problem, way)
        return self._columns[way]

    def _block(self, block: Block, first: int, sharded: frozenset[int]) -> BlockCost:
        lanes = [self.lane(lane, first) for lane in block]
        total = sum(lane.share for lane in block)
        weights = tuple(lane.share / total for lane in block)
        # From the entry to the end of each lane.
        ways = [(rows[-1].in_s + rows[-1].forward_s, rows[-1].out_s + rows[-1].backward_s)
                for rows in lanes]  # fmt: skip
        forward_s, backward_s = (
            sum(weight * way[side] for weight, way in zip(weights, ways, strict=True))
            for side in (0, 1)
        )
        if len(block) > 1 or any(len(part.groups) > 1 for part in block[0].parts):
            lanes = self._with_sums(block, lanes, sharded)
        return BlockCost(tuple(lanes), weights, forward_s, backward_s)

    def _rows(self, lane: Lane, first: int) -> tuple[Row, ...]:
        in_s, out_s, rows = 0.0, 0.0, list[Row]()
        for index, part in enumerate(lane.parts):
            column, stop = self.column(part), part.stop
            share = -(-lane.share // len(part.groups))
            message = link_s = 0.0
            if index + 1 < len(lane.parts):
                message = self.message_s(part, lane.parts[index + 1])
                latency, per_byte = self._message(part, lane.parts[index + 1])
                link_s = 2 * latency + (share + 1) * self._output_bytes[stop - 1] * per_byte
            state = column.state_bytes[stop] - column.state_bytes[first]
            row = Row(
                first, stop, len(part.groups), share,
                column.forward_s[stop] - column.forward_s[first],
                column.backward_s[stop] - column.backward_s[first],
                in_s, out_s, 0.0, link_s,
                state + column.sharded_bytes[stop] - column.sharded_bytes[first],
                column.kept_bytes[stop] - column.kept_bytes[first], column.room_bytes, 0.0,
                column.optimizer_s[stop] - column.optimizer_s[first],
            )  # fmt: skip
            rows.append(row)
            in_s, out_s = in_s + row.forward_s + message, out_s + row.backward_s + message
            first = stop
        return tuple(
            row._replace(
                behind_s=in_s - row.in_s - row.forward_s + out_s - row.out_s - row.backward_s
            )
            for row in rows
        )

    def _with_sums(
        self, block: Block, lanes: Sequence[tuple[Row, ...]], sharded: frozenset[int]
    ) -> list[tuple[Row, ...]]:
        """The parts with the sums of what others hold, too, and what sharing of state spares.

        Layers that the same devices hold are summed together.
        """
        parts = [(part, row) for lane, rows in zip(block, lanes, strict=True)
                 for part, row in zip(lane.parts, rows, strict=True)]  # fmt: skip
        summed, spared_bytes, spared_s = ([0.0] * len(parts) for _ in range(3))
        edges = sorted({edge for _, row in parts for edge in (row.first, row.stop)})
        for first, stop in pairwise(edges):
            holders = [i for i, (_, row) in enumerate(parts) if row.first <= first < row.stop]
            names = [group[0] for index in holders for group in parts[index][0].groups]
            if len(names) == 1:
                continue
            columns = {index: self.column(parts[index][0]) for index in holders}
            ring_s = self._ring_s(names, list(columns.values()), first, stop)
            for index, column in columns.items():
                summed[index] += ring_s
                if first in sharded:
                    spared = 1 - 1 / len(names)
                    bytes_ = column.sharded_bytes[stop] - column.sharded_bytes[first]
                    spared_bytes[index] += spared * bytes_
                    steps_s = column.optimizer_s[stop] - column.optimizer_s[first]
                    spared_s[index] += spared * steps_s
        rows = [
            row._replace(
                summed_s=summed[index], state_bytes=row.state_bytes - spared_bytes[index],
                optimizer_s=row.optimizer_s - spared_s[index],
            )
            for index, (_, row) in enumerate(parts)
        ]  # fmt: skip
        found, taken = list[tuple[Row, ...]](), 0
        for lane in lanes:
            found.append(tuple(rows[taken : taken + len(lane)]))
            taken += len(lane)
        return found

    def _ring_s(
        self, names: Sequence[str], columns: Sequence[Column], first: int, stop: int
    ) -> float:
        latency, per_byte = self._ring(names)
        num_bytes = max(each.gradient_bytes[stop] - each.gradient_bytes[first] for each in columns)
        return 2 * (len(names) - 1) * (latency + num_bytes / len(names) * per_byte)

    def _message(self, front: Part, behind: Part) -> tuple[float, float]:
        """Latency and seconds per byte, on average over the replicas."""
        key = front.groups, behind.groups
        if key not in self._messages:
            links = [self._problem.link(a[0], b[0]) for a in front.groups for b in behind.groups]
            self._messages[key] = (
                sum(link.latency_s for link in links) / len(links),
                sum(1 / link.bandwidth_bytes_per_s for link in links) / len(links),
            )
        return self._messages[key]

    def _ring(self, names: Sequence[str]) -> tuple[float, float]:
        """Of the slowest link on the way around, in the order of the cluster."""
        key = frozenset(names)
        if key not in self._rings:
            order = sorted(names, key=self._order.__getitem__)
            self._rings[key] = self._problem.slowest_link(
                zip(order, order[1:] + order[:1], strict=True)
            )
        return self._rings[key]


def _column(problem: Problem, way: _Way) -> Column:
    kind, degree, memory = way
    tables = option_tables(problem, (StageOption(kind, degree, memory, True),))
    options = tables.stage_options

    def prefix(values: Floats) -> list[float]:
        sums: list[float] = np.concatenate([[0.0], np.cumsum(values[:, 0])]).tolist()
        return sums

    return Column(
        prefix(tables.forward_s), prefix(tables.backward_s), prefix(tables.optimizer_s),
        prefix(options.state_bytes), prefix(options.sharded_bytes),
        prefix(options.activation_bytes), prefix(options.gradient_bytes),
        float(tables.memory_bytes[0]),
    )  # fmt: skip
