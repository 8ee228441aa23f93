"""Plans of blocks and lanes with one thing changed: a block, a lane, a part, a border."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heterps_agents.asymmetric.weave import Block, Lane, Part, Weave


class Place(NamedTuple):
    """Where a part stands: its block, lane, and place in the lane."""

    block: int
    lane: int
    part: int


def run_of(weave: Weave, number: int) -> tuple[int, int]:
    """Of a row of blocks of one lane the first, and that behind the last; or a block alone."""
    first, stop = number, number + 1
    if len(weave.blocks[number]) == 1:
        while first > 0 and len(weave.blocks[first - 1]) == 1:
            first -= 1
        while stop < len(weave.blocks) and len(weave.blocks[stop]) == 1:
            stop += 1
    return first, stop


def part_at(weave: Weave, place: Place) -> Part:
    """The part at a place."""
    return weave.blocks[place.block][place.lane].parts[place.part]


def first_of(weave: Weave, place: Place) -> int:
    """Its first layer."""
    if place.part:
        return part_at(weave, place._replace(part=place.part - 1)).stop
    return weave.starts[place.block]


def with_block(weave: Weave, number: int, block: Block) -> Weave:
    """The plan with another block."""
    blocks = weave.blocks
    return weave._replace(blocks=(*blocks[:number], block, *blocks[number + 1 :]))


def with_lane(weave: Weave, place: Place, lane: Lane) -> Weave:
    """The plan with another lane where a part stands."""
    block = weave.blocks[place.block]
    return with_block(weave, place.block, (*block[: place.lane], lane, *block[place.lane + 1 :]))


def with_part(weave: Weave, place: Place, part: Part) -> Weave:
    """The plan with another part."""
    lane = weave.blocks[place.block][place.lane]
    parts = (*lane.parts[: place.part], part, *lane.parts[place.part + 1 :])
    return with_lane(weave, place, lane._replace(parts=parts))


def with_border(weave: Weave, number: int, shift: int) -> Iterator[Weave]:
    """The border behind a block moved, in all lanes on both sides."""
    border = weave.starts[number + 1] + shift
    front = tuple(
        lane._replace(parts=(*lane.parts[:-1], lane.parts[-1]._replace(stop=border)))
        for lane in weave.blocks[number]
    )
    are_in_order = all(is_in_order(lane.parts, weave.starts[number]) for lane in front) and all(
        is_in_order(lane.parts, border) for lane in weave.blocks[number + 1]
    )
    if are_in_order:
        yield with_block(weave, number, front)


def orders(count: int) -> Iterator[tuple[int, ...]]:
    """Of some numbers in a row: one moved to another place, or some of them turned round."""
    numbers = tuple(range(count))
    for one in numbers:
        rest = (*numbers[:one], *numbers[one + 1 :])
        for place in numbers:
            if place not in (one, one - 1):  # neighbours change places once
                yield (*rest[:place], one, *rest[place:])
    for first in numbers:
        for stop in range(first + 3, count + 1):
            yield (*numbers[:first], *reversed(numbers[first:stop]), *numbers[stop:])


def with_order(weave: Weave, order: Sequence[int]) -> Weave:
    """The plan with its blocks in another order, each with as many layers as before."""
    blocks, starts, first = list[Block](), weave.starts, 0
    for number in order:
        shift = first - starts[number]
        blocks.append(
            tuple(
                lane._replace(
                    parts=tuple(part._replace(stop=part.stop + shift) for part in lane.parts)
                )
                for lane in weave.blocks[number]
            )
        )
        first += starts[number + 1] - starts[number]
    return weave._replace(blocks=tuple(blocks))


def is_in_order(parts: Sequence[Part], first: int) -> bool:
    """Whether each part has a layer."""
    for part in parts:
        if part.stop <= first:
            return False
        first = part.stop
    return True
