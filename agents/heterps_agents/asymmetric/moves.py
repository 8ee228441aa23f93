"""Small changes of a plan of blocks and lanes: cuts, shares, devices, lanes.

Where lanes of a block change, its micro-batches are shared anew by what the lanes take.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.shares import by_rates
from heterps_agents.asymmetric.weave import Block, Group, Lane, Part, Weave
from heterps_envs.options import Memory

SHIFTS = (1, -1, 2, -2)
# Micro-batches that go from one lane to another.
GIVEN = (1, 2)


class Place(NamedTuple):
    """Where a part stands: its block, lane, and place in the lane."""

    block: int
    lane: int
    part: int


class Moves:
    """Changes of plans for one problem.

    Args:
        estimates: What lanes take.
        groups: That a plan may use besides its own, if their devices are idle.
        memories: What a stage may do with activations.
        shards: Whether optimizer state may be divided among those that hold it.
    """

    def __init__(
        self,
        estimates: Estimates,
        groups: Iterable[Group],
        memories: Sequence[Memory],
        *,
        shards: bool = False,
    ) -> None:
        self._estimates, self._memories, self._shards = estimates, tuple(memories), shards
        self._by_kind: dict[tuple[int, str, int], list[Group]] = {}
        for group in groups:
            self._by_kind.setdefault(estimates.kind(group), []).append(group)

    def cuts(self, weave: Weave) -> Iterator[Weave]:
        """Cuts that move by a layer or two, and micro-batches that go from lane to lane."""
        for number in range(len(weave.blocks) - 1):
            for shift in SHIFTS:
                yield from _with_border(weave, number, shift)
        for place in places_of(weave):
            lane = weave.blocks[place.block][place.lane]
            if place.part + 1 == len(lane.parts):
                continue
            for shift in SHIFTS:
                parts = list(lane.parts)
                parts[place.part] = parts[place.part]._replace(stop=parts[place.part].stop + shift)
                if _is_in_order(parts, weave.starts[place.block]):
                    yield _with_lane(weave, place, lane._replace(parts=tuple(parts)))
        yield from self._shared_otherwise(weave)

    def changes(self, weave: Weave) -> Iterator[Weave]:
        """Other devices, parts and lanes."""
        places = places_of(weave)
        if self._shards:
            every = frozenset(range(weave.starts[-1]))
            yield weave._replace(sharded=frozenset() if weave.sharded else every)
        yield from self._swaps(weave, places)
        for group in self._idle(weave):
            for place in places:
                yield from self._replaced(weave, place, group)
            yield from self._with_more(weave, places, group)
        for place in places:
            part = _part_at(weave, place)
            for memory in self._memories:
                if memory != part.memory:
                    yield _with_part(weave, place, part._replace(memory=memory))
            yield from self._without(weave, place)
        yield from self._joined(weave)
        yield from self._without_lanes(weave)
        for place in places:
            for left in self._without(weave, place):
                for group in _part_at(weave, place).groups[:1]:
                    yield from self._with_more(left, places_of(left), group)

    def _idle(self, weave: Weave) -> Iterator[Group]:
        """Of each kind of group one that the plan does not use."""
        used = {name for group in weave.groups for name in group}
        for groups in self._by_kind.values():
            idle = next((group for group in groups if used.isdisjoint(group)), None)
            if idle is not None:
                yield idle

    def _shared_otherwise(self, weave: Weave) -> Iterator[Weave]:
        for number, block in enumerate(weave.blocks):
            for giving, lane in enumerate(block):
                for taking in range(len(block)):
                    for given in GIVEN:
                        if taking != giving and lane.share > given:
                            lanes = list(block)
                            lanes[giving] = lane._replace(share=lane.share - given)
                            lanes[taking] = lanes[taking]._replace(
                                share=lanes[taking].share + given
                            )
                            yield _with_block(weave, number, tuple(lanes))

    def _swaps(self, weave: Weave, places: Sequence[Place]) -> Iterator[Weave]:
        """Two parts change their devices."""
        kind = self._estimates.kind
        for index, one in enumerate(places):
            for two in places[index + 1 :]:
                first, second = _part_at(weave, one), _part_at(weave, two)
                if [*map(kind, first.groups)] == [*map(kind, second.groups)]:
                    continue
                changed = _with_part(weave, one, first._replace(groups=second.groups))
                changed = _with_part(changed, two, second._replace(groups=first.groups))
                numbers = {one.block, two.block}
                for number in numbers:
                    changed = self._shared(changed, number)
                yield changed
                yield from self._cut_anew(changed, numbers)

    def _replaced(self, weave: Weave, place: Place, group: Group) -> Iterator[Weave]:
        """Another group in the place of one."""
        part = _part_at(weave, place)
        if self._estimates.kind(group) != self._estimates.kind(part.groups[0]):
            changed = _with_part(weave, place, part._replace(groups=(group, *part.groups[1:])))
            changed = self._shared(changed, place.block)
            yield changed
            yield from self._cut_anew(changed, {place.block})

    def _with_more(self, weave: Weave, places: Sequence[Place], group: Group) -> Iterator[Weave]:
        """One more group: a lane of its own, or some layers of a part, the front or the back."""
        for number, block in enumerate(weave.blocks):
            stop = weave.starts[number + 1]
            if len(block) < sum(lane.share for lane in block):
                lane = Lane(1, (Part(stop, (group,), block[0].parts[0].memory),))
                yield self._shared(_with_block(weave, number, (*block, lane)), number)
        for place in places:
            lane = weave.blocks[place.block][place.lane]
            part, first = lane.parts[place.part], _first_of(weave, place)
            for is_front in (True, False):
                cut = self._estimates.even_cut(first, part, group, is_front=is_front)
                if cut is None:
                    continue
                own = Part(part.stop, (group,), part.memory)
                pair = (own, part) if is_front else (part, own)
                parts = (
                    *lane.parts[: place.part], pair[0]._replace(stop=cut),
                    pair[1]._replace(stop=part.stop), *lane.parts[place.part + 1 :],
                )  # fmt: skip
                changed = _with_lane(weave, place, lane._replace(parts=parts))
                yield self._shared(changed, place.block)

    def _without(self, weave: Weave, place: Place) -> list[Weave]:
        """Its part gone: the part in front or behind takes its layers; or the lane is gone."""
        block = weave.blocks[place.block]
        lane = block[place.lane]
        if len(lane.parts) == 1:
            if len(block) == 1:
                return []
            lanes = (*block[: place.lane], *block[place.lane + 1 :])
            return [self._shared(_with_block(weave, place.block, lanes), place.block)]
        found = []
        for is_front_taking in (True, False):
            parts = list(lane.parts)
            if is_front_taking and place.part > 0:
                parts[place.part - 1] = parts[place.part - 1]._replace(stop=parts[place.part].stop)
            elif is_front_taking or place.part + 1 == len(parts):
                continue
            del parts[place.part]
            changed = _with_lane(weave, place, lane._replace(parts=tuple(parts)))
            found.append(self._shared(changed, place.block))
        return found

    def _without_lanes(self, weave: Weave) -> Iterator[Weave]:
        """A whole lane gone."""
        for number, block in enumerate(weave.blocks):
            for index, lane in enumerate(block):
                if len(block) > 1 and len(lane.parts) > 1:
                    lanes = (*block[:index], *block[index + 1 :])
                    yield self._shared(_with_block(weave, number, lanes), number)

    def _joined(self, weave: Weave) -> Iterator[Weave]:
        """Two lanes of one part each as one of two, and the other way."""
        for number, block in enumerate(weave.blocks):
            first, stop = weave.starts[number : number + 2]
            for index, lane in enumerate(block):
                others = [each for at, each in enumerate(block) if at != index]
                if len(lane.parts) == 2:
                    alone = [Lane(1, (each._replace(stop=stop),)) for each in lane.parts]
                    if len(block) < sum(each.share for each in block):
                        changed = _with_block(weave, number, (*others, *alone))
                        yield self._shared(changed, number)
                if len(lane.parts) != 1:
                    continue
                for other in block[index + 1 :]:
                    cut = None
                    if len(other.parts) == 1:
                        cut = self._estimates.even_cut(
                            first, lane.parts[0], other.parts[0].groups[0], is_front=False
                        )
                    if cut is None:
                        continue
                    parts = (lane.parts[0]._replace(stop=cut), other.parts[0])
                    rest = [each for each in others if each is not other]
                    changed = _with_block(weave, number, (*rest, Lane(1, parts)))
                    yield self._shared(changed, number)

    def _cut_anew(self, weave: Weave, numbers: Iterable[int]) -> Iterator[Weave]:
        """The plan with even parts in some blocks, where it has others.

        Blocks of one lane in a row are cut as one lane.
        """
        blocks = list(weave.blocks)
        for first, stop in {_run_of(weave, number) for number in numbers}:
            start = weave.starts[first]
            if stop - first > 1 or len(blocks[first]) == 1:
                parts = [part for block in blocks[first:stop] for part in block[0].parts]
                cut = iter(self._estimates.evenly_cut(parts, start))
                for number in range(first, stop):
                    (lane,) = blocks[number]
                    own = tuple(next(cut) for _ in lane.parts)
                    blocks[number] = (lane._replace(parts=own),)
            else:
                blocks[first] = tuple(
                    lane._replace(parts=tuple(self._estimates.evenly_cut(lane.parts, start)))
                    for lane in blocks[first]
                )
        changed = weave._replace(blocks=tuple(blocks))
        if changed != weave:
            yield changed

    def _shared(self, weave: Weave, number: int) -> Weave:
        """The micro-batches of a block shared by what its lanes take."""
        block, first = weave.blocks[number], weave.starts[number]
        total = self._estimates.num_micro_batches
        taken = [self._estimates.lane_s(lane, first) for lane in block]
        shares = by_rates([fill - each for fill, each in taken], [each for _, each in taken], total)
        if shares is None:
            return weave
        lanes = tuple(lane._replace(share=own) for lane, own in zip(block, shares, strict=True))
        return _with_block(weave, number, lanes)


def places_of(weave: Weave) -> list[Place]:
    """All parts, from front to back."""
    return [
        Place(number, index, part)
        for number, block in enumerate(weave.blocks)
        for index, lane in enumerate(block)
        for part in range(len(lane.parts))
    ]


def _run_of(weave: Weave, number: int) -> tuple[int, int]:
    """Of a row of blocks of one lane the first, and that behind the last; or a block alone."""
    first, stop = number, number + 1
    if len(weave.blocks[number]) == 1:
        while first > 0 and len(weave.blocks[first - 1]) == 1:
            first -= 1
        while stop < len(weave.blocks) and len(weave.blocks[stop]) == 1:
            stop += 1
    return first, stop


def _part_at(weave: Weave, place: Place) -> Part:
    return weave.blocks[place.block][place.lane].parts[place.part]


def _first_of(weave: Weave, place: Place) -> int:
    """Its first layer."""
    if place.part:
        return _part_at(weave, place._replace(part=place.part - 1)).stop
    return weave.starts[place.block]


def _with_block(weave: Weave, number: int, block: Block) -> Weave:
    blocks = weave.blocks
    return weave._replace(blocks=(*blocks[:number], block, *blocks[number + 1 :]))


def _with_lane(weave: Weave, place: Place, lane: Lane) -> Weave:
    block = weave.blocks[place.block]
    return _with_block(weave, place.block, (*block[: place.lane], lane, *block[place.lane + 1 :]))


def _with_part(weave: Weave, place: Place, part: Part) -> Weave:
    lane = weave.blocks[place.block][place.lane]
    parts = (*lane.parts[: place.part], part, *lane.parts[place.part + 1 :])
    return _with_lane(weave, place, lane._replace(parts=parts))


def _with_border(weave: Weave, number: int, shift: int) -> Iterator[Weave]:
    """The border behind a block moved, in all lanes on both sides."""
    border = weave.starts[number + 1] + shift
    front = tuple(
        lane._replace(parts=(*lane.parts[:-1], lane.parts[-1]._replace(stop=border)))
        for lane in weave.blocks[number]
    )
    are_in_order = all(_is_in_order(lane.parts, weave.starts[number]) for lane in front) and all(
        _is_in_order(lane.parts, border) for lane in weave.blocks[number + 1]
    )
    if are_in_order:
        yield _with_block(weave, number, front)


def _is_in_order(parts: Sequence[Part], first: int) -> bool:
    """Whether each part has a layer."""
    for part in parts:
        if part.stop <= first:
            return False
        first = part.stop
    return True
