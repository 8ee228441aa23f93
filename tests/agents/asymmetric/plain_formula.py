"""The formula of lanes as words say it, one number at a time: what compiled code must equal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from heterps_agents.asymmetric.weave import Block, Lane, Part, Weave
from heterps_envs.options import StageOption, option_tables
from heterps_envs.problem import Problem


class Piece(NamedTuple):
    """A part of a lane: where it stands, its first layer, and the part itself."""

    block: int
    lane: int
    place: int
    first: int
    part: Part

    @property
    def layers(self) -> slice:
        """All of its layers."""
        return slice(self.first, self.part.stop)

    @property
    def replicas(self) -> int:
        """Groups that take turns."""
        return len(self.part.groups)


class PlainFormula:
    """What a plan takes.

    Args:
        problem: What was asked.
        weave: The plan.
        room: Memory is so many times what the rule of planners leaves.
    """

    def __init__(self, problem: Problem, weave: Weave, room: float) -> None:
        self.problem, self.weave, self.room = problem, weave, room
        self.pieces = [
            Piece(block, lane, place, first, part)
            for block, lanes in enumerate(weave.blocks)
            for lane, each in enumerate(lanes)
            for place, (first, part) in enumerate(_with_firsts(each, weave.starts[block]))
        ]

    def step_s(self) -> float:
        """Seconds of a step; inf without room."""
        if not all(map(self._has_room, self.pieces)):
            return math.inf
        passed_s = max(map(self._passed_s, self.pieces))
        return max([passed_s, *(passed_s + self._later_s(piece) for piece in self.pieces)])

    def taken(self, piece: Piece, name: str, layers: slice | None = None) -> float:
        """By a part, or by some of its layers, of what has a name in the tables."""
        tables = option_tables(self.problem, (self._option(piece.part),))
        column = getattr(tables if name.endswith("_s") else tables.stage_options, name)
        return float(column[layers or piece.layers, 0].sum())

    def _option(self, part: Part) -> StageOption:
        group = part.groups[0]
        return StageOption(self.problem.class_of[group[0]], len(group), part.memory, True)

    def _mean_link(self, front: Part, behind: Part) -> tuple[float, float]:
        links = [self.problem.link(a[0], b[0]) for a in front.groups for b in behind.groups]
        latency_s = sum(link.latency_s for link in links) / len(links)
        return latency_s, sum(1 / link.bandwidth_bytes_per_s for link in links) / len(links)

    def _message_s(self, front: Part, behind: Part) -> float:
        latency_s, s_per_byte = self._mean_link(front, behind)
        return latency_s + float(self.problem.tables.output_bytes[front.stop - 1]) * s_per_byte

    def _lane(self, piece: Piece) -> Lane:
        return self.weave.blocks[piece.block][piece.lane]

    def way_s(self, block: int, lane: int, name: str, first: int, stop: int) -> float:
        """Through parts `first .. stop - 1` of a lane, with the messages behind each."""
        own = [p for p in self.pieces if (p.block, p.lane) == (block, lane)][first:stop]
        parts = self.weave.blocks[block][lane].parts
        behind = [parts[p.place + 1] if p.place + 1 < len(parts) else None for p in own]
        return sum(
            self.taken(p, name) + (0.0 if other is None else self._message_s(p.part, other))
            for p, other in zip(own, behind, strict=True)
        )

    def _mean(self, block: Block, values: list[float]) -> float:
        total = sum(lane.share for lane in block)
        return sum(lane.share / total * value for lane, value in zip(block, values, strict=True))

    def _block_s(self, number: int, name: str) -> float:
        block = self.weave.blocks[number]
        ways = [
            self.way_s(number, lane, name, 0, len(each.parts)) for lane, each in enumerate(block)
        ]
        return self._mean(block, ways)

    def _entries_s(self, number: int) -> list[float]:
        """Of messages to each lane of a block."""
        block = self.weave.blocks[number]
        if number == 0:
            return [0.0] * len(block)
        front = self.weave.blocks[number - 1]
        return [
            self._mean(front, [self._message_s(e.parts[-1], lane.parts[0]) for e in front])
            for lane in block
        ]

    def _entry_s(self, number: int) -> float:
        return self._mean(self.weave.blocks[number], self._entries_s(number))

    def _way_to_s(self, piece: Piece, name: str) -> float:
        before = sum(self._block_s(n, name) + self._entry_s(n) for n in range(piece.block))
        own = self.way_s(piece.block, piece.lane, name, 0, piece.place)
        return before + self._entries_s(piece.block)[piece.lane] + own

    def _round_s(self, piece: Piece) -> float:
        """From its end to the end of the plan and back."""
        numbers = range(piece.block + 1, len(self.weave.blocks))
        later = sum(
            self._block_s(n, "forward_s") + self._block_s(n, "backward_s") + 2 * self._entry_s(n)
            for n in numbers
        )
        parts = self._lane(piece).parts
        behind = piece.place + 1
        if behind < len(parts):
            later += 2 * self._message_s(piece.part, parts[behind])
            later += sum(
                self.way_s(piece.block, piece.lane, name, behind, len(parts))
                for name in ("forward_s", "backward_s")
            )
        return later

    def _share(self, piece: Piece) -> int:
        return math.ceil(self._lane(piece).share / piece.replicas)

    def _beside(self, piece: Piece) -> Iterator[Piece]:
        """All parts of its pipeline."""
        is_alone = len(self.weave.blocks) == 1
        return (other for other in self.pieces if not is_alone or other.lane == piece.lane)

    def _held(self, piece: Piece) -> int:
        share = self._share(piece)
        if self.problem.tables.is_gpipe:
            return share
        alike = sum(o.replicas for o in self._beside(piece) if o.layers == piece.layers)
        behind = sum(o.replicas for o in self._beside(piece) if o.first >= piece.part.stop)
        return min(share, math.ceil((alike + behind) / alike))

    def _room_bytes(self, piece: Piece) -> float:
        tables = option_tables(self.problem, (self._option(piece.part),))
        state = self.taken(piece, "state_bytes")
        for layers, holders in self._summed(piece):
            is_shared = holders > 1 and layers.start in self.weave.sharded
            own = self.taken(piece, "sharded_bytes", layers)
            state += own / holders if is_shared else own
        return self.room * float(tables.memory_bytes[0]) - state

    def _has_room(self, piece: Piece) -> bool:
        kept = self.taken(piece, "activation_bytes")
        return self._held(piece) * kept <= self._room_bytes(piece)

    def _in_flight(self, piece: Piece) -> int:
        held = self._held(piece)
        if self.problem.job.schedule != "1f1b":
            return held
        kept, room = self.taken(piece, "activation_bytes"), self._room_bytes(piece)
        counts = range(held, self._share(piece) + 1)
        return max((count for count in counts if count * kept <= room), default=held)

    def _passed_s(self, piece: Piece) -> float:
        """When its passes are over, and what is in front has had them back."""
        forward_s, backward_s = (self.taken(piece, n) for n in ("forward_s", "backward_s"))
        share, held, round_s = self._share(piece), self._in_flight(piece), self._round_s(piece)
        waits = [max(0.0, round_s - (held - 1) * each) for each in (forward_s, backward_s)]
        busy = share * (forward_s + backward_s) + (sum(waits) if share > held else max(waits))
        rounds = math.ceil(share / held) * (forward_s + backward_s + round_s)
        link_s, parts = 0.0, self._lane(piece).parts
        if piece.place + 1 < len(parts):
            latency_s, s_per_byte = self._mean_link(piece.part, parts[piece.place + 1])
            num_bytes = float(self.problem.tables.output_bytes[piece.part.stop - 1])
            link_s = 2 * latency_s + (share + 1) * num_bytes * s_per_byte
        ways = (self._way_to_s(piece, name) for name in ("forward_s", "backward_s"))
        return sum(ways) + max(busy, rounds, link_s)

    def _summed(self, piece: Piece) -> Iterator[tuple[slice, int]]:
        """Its layers between cuts of any lane of its block, and how many devices hold them."""
        lanes = [other for other in self.pieces if other.block == piece.block]
        edges = {edge for other in lanes for edge in (other.first, other.part.stop)}
        inside = sorted(edge for edge in edges if piece.first <= edge <= piece.part.stop)
        for first, stop in pairwise(inside):
            yield slice(first, stop), len(self._holders(piece.block, first))

    def _holders(self, block: int, layer: int) -> list[tuple[Piece, str]]:
        return [
            (other, group[0])
            for other in self.pieces
            if other.block == block and other.first <= layer < other.part.stop
            for group in other.part.groups
        ]

    def _later_s(self, piece: Piece) -> float:
        """From the end of all passes to the end of its own optimizer step."""
        summed_s, optimizer_s = 0.0, self.taken(piece, "optimizer_s")
        for layers, count in self._summed(piece):
            if count > 1:
                summed_s += self._ring_s(piece.block, layers)
                spared = 1 - 1 / count if layers.start in self.weave.sharded else 0.0
                optimizer_s -= spared * self.taken(piece, "optimizer_s", layers)
        backward_s, num_layers = self.taken(piece, "backward_s"), piece.part.stop - piece.first
        after_s = max(summed_s - backward_s, summed_s / num_layers) + optimizer_s
        return after_s - self._way_to_s(piece, "backward_s")

    def _ring_s(self, block: int, layers: slice) -> float:
        holders = self._holders(block, layers.start)
        index = self.problem.links.index
        around = sorted((name for _, name in holders), key=index.__getitem__)
        pairs = zip(around, around[1:] + around[:1], strict=True)
        latency_s, s_per_byte = self.problem.slowest_link(pairs)
        num_bytes = max(self.taken(other, "gradient_bytes", layers) for other, _ in holders)
        message_s = latency_s + num_bytes / len(around) * s_per_byte
        return 2 * (len(around) - 1) * message_s


def _with_firsts(lane: Lane, first: int) -> Iterator[tuple[int, Part]]:
    for part in lane.parts:
        yield first, part
        first = part.stop
