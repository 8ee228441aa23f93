"""Small changes of a plan of blocks and lanes: cuts, shares, devices, lanes.

Where lanes of a block change, its micro-batches are shared anew by what the lanes take. Of lanes
that are alike one is changed, and where cuts or memory change, all of them together as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from heterps_agents.asymmetric.edits import (
    Place,
    first_of,
    is_in_order,
    orders,
    part_at,
    run_of,
    with_block,
    with_border,
    with_lane,
    with_order,
    with_part,
)
from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.shares import by_rates
from heterps_agents.asymmetric.weave import Group, Lane, Part, Weave
from heterps_envs.options import Memory

SHIFTS = (1, -1, 2, -2)
# Micro-batches that go from one lane to another.
GIVEN = (1, 2)


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
                yield from with_border(weave, number, shift)
        for place in self._places(weave):
            part = part_at(weave, place)
            if place.part + 1 < len(weave.blocks[place.block][place.lane].parts):
                for shift in SHIFTS:
                    moved = part._replace(stop=part.stop + shift)
                    for changed in self._in_all_alike(weave, place, moved):
                        own = changed.blocks[place.block][place.lane].parts
                        if is_in_order(own, weave.starts[place.block]):
                            yield changed
        yield from self._shared_otherwise(weave)

    def changes(self, weave: Weave) -> Iterator[Weave]:
        """Other devices, parts and lanes."""
        places = self._places(weave)
        if self._shards:
            every = frozenset(range(weave.starts[-1]))
            yield weave._replace(sharded=frozenset() if weave.sharded else every)
        yield from self._swaps(weave, places)
        for order in orders(len(weave.blocks)):
            yield with_order(weave, order)
        for group in self._idle(weave):
            for place in places:
                yield from self._replaced(weave, place, group)
            yield from self._with_more(weave, places, group)
        for place in places:
            part = part_at(weave, place)
            for memory in self._memories:
                if memory != part.memory:
                    yield from self._in_all_alike(weave, place, part._replace(memory=memory))
            yield from self._without(weave, place)
        yield from self._joined(weave)
        yield from self._without_lanes(weave)
        for place in places:
            for left in self._without(weave, place):
                for group in part_at(weave, place).groups[:1]:
                    yield from self._with_more(left, self._places(left), group)

    def _idle(self, weave: Weave) -> Iterator[Group]:
        """Of each kind of group one that the plan does not use; equal nodes that idle are alike."""
        used = {name for group in weave.groups for name in group}
        seen = set[tuple[object, ...]]()
        nodes = {self._estimates.kind(group)[1] for group in weave.groups}
        for (kind, node, degree), groups in self._by_kind.items():
            own = kind, self._estimates.like(node), degree, node if node in nodes else ""
            idle = next((group for group in groups if used.isdisjoint(group)), None)
            if idle is not None and own not in seen:
                seen.add(own)
                yield idle

    def _alike(self, weave: Weave, number: int) -> list[list[int]]:
        """The lanes of a block by what they are, those first that have most micro-batches."""
        found: dict[tuple[object, ...], list[int]] = {}
        block = weave.blocks[number]
        for index in sorted(range(len(block)), key=lambda at: -block[at].share):
            nodes = dict[str, int]()
            parts = []
            for part in block[index].parts:
                kinds = []
                for group in part.groups:
                    kind, node, degree = self._estimates.kind(group)
                    place = nodes.setdefault(node, len(nodes))
                    kinds.append((kind, self._estimates.like(node), place, degree))
                parts.append((part.stop, part.memory, *kinds))
            found.setdefault(tuple(parts), []).append(index)
        return list(found.values())

    def _places(self, weave: Weave) -> list[Place]:
        """The parts of one lane of each kind, from front to back."""
        return [
            Place(number, lanes[0], part)
            for number, block in enumerate(weave.blocks)
            for lanes in self._alike(weave, number)
            for part in range(len(block[lanes[0]].parts))
        ]

    def _in_all_alike(self, weave: Weave, place: Place, part: Part) -> Iterator[Weave]:
        """Cut and memory of a part changed: in its lane, and in all that are like it."""
        yield with_part(weave, place, part)
        lanes = next(own for own in self._alike(weave, place.block) if place.lane in own)
        if len(lanes) > 1:
            changed = weave
            for lane in lanes:
                at = place._replace(lane=lane)
                own = part_at(weave, at)._replace(stop=part.stop, memory=part.memory)
                changed = with_part(changed, at, own)
            yield changed

    def _shared_otherwise(self, weave: Weave) -> Iterator[Weave]:
        for number, block in enumerate(weave.blocks):
            firsts = [lanes[0] for lanes in self._alike(weave, number)]
            lasts = [lanes[-1] for lanes in self._alike(weave, number)]
            for giving in firsts:
                for taking in lasts:
                    for given in GIVEN:
                        if taking != giving and block[giving].share > given:
                            lanes = list(block)
                            lanes[giving] = lanes[giving]._replace(
                                share=lanes[giving].share - given
                            )
                            lanes[taking] = lanes[taking]._replace(
                                share=lanes[taking].share + given
                            )
                            yield with_block(weave, number, tuple(lanes))

    def _swaps(self, weave: Weave, places: Sequence[Place]) -> Iterator[Weave]:
        """Two parts change their devices."""
        kind = self._estimates.kind
        for index, one in enumerate(places):
            for two in places[index + 1 :]:
                first, second = part_at(weave, one), part_at(weave, two)
                if [*map(kind, first.groups)] == [*map(kind, second.groups)]:
                    continue
                changed = with_part(weave, one, first._replace(groups=second.groups))
                changed = with_part(changed, two, second._replace(groups=first.groups))
                numbers = {one.block, two.block}
                for number in numbers:
                    changed = self.shared(changed, number)
                yield changed
                yield from self._cut_anew(changed, numbers)

    def _replaced(self, weave: Weave, place: Place, group: Group) -> Iterator[Weave]:
        """Another group in the place of one."""
        part = part_at(weave, place)
        if self._estimates.kind(group) != self._estimates.kind(part.groups[0]):
            changed = with_part(weave, place, part._replace(groups=(group, *part.groups[1:])))
            changed = self.shared(changed, place.block)
            yield changed
            yield from self._cut_anew(changed, {place.block})

    def _with_more(self, weave: Weave, places: Sequence[Place], group: Group) -> Iterator[Weave]:
        """One more group: a lane of its own, or some layers of a part, the front or the back."""
        for number, block in enumerate(weave.blocks):
            stop = weave.starts[number + 1]
            if len(block) < sum(lane.share for lane in block):
                lane = Lane(1, (Part(stop, (group,), block[0].parts[0].memory),))
                yield self.shared(with_block(weave, number, (*block, lane)), number)
        for place in places:
            lane = weave.blocks[place.block][place.lane]
            part, first = lane.parts[place.part], first_of(weave, place)
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
                changed = with_lane(weave, place, lane._replace(parts=parts))
                yield self.shared(changed, place.block)

    def _without(self, weave: Weave, place: Place) -> list[Weave]:
        """Its part gone: the part in front or behind takes its layers; or the lane is gone."""
        block = weave.blocks[place.block]
        lane = block[place.lane]
        if len(lane.parts) == 1:
            if len(block) == 1:
                return []
            lanes = (*block[: place.lane], *block[place.lane + 1 :])
            return [self.shared(with_block(weave, place.block, lanes), place.block)]
        found = []
        for is_front_taking in (True, False):
            parts = list(lane.parts)
            if is_front_taking and place.part > 0:
                parts[place.part - 1] = parts[place.part - 1]._replace(stop=parts[place.part].stop)
            elif is_front_taking or place.part + 1 == len(parts):
                continue
            del parts[place.part]
            changed = with_lane(weave, place, lane._replace(parts=tuple(parts)))
            found.append(self.shared(changed, place.block))
        return found

    def _without_lanes(self, weave: Weave) -> Iterator[Weave]:
        """A whole lane gone."""
        for number, block in enumerate(weave.blocks):
            for index, *_ in self._alike(weave, number):
                if len(block) > 1 and len(block[index].parts) > 1:
                    lanes = (*block[:index], *block[index + 1 :])
                    yield self.shared(with_block(weave, number, lanes), number)

    def _joined(self, weave: Weave) -> Iterator[Weave]:
        """Two lanes of one part each as one of two, and the other way."""
        for number, block in enumerate(weave.blocks):
            first, stop = weave.starts[number : number + 2]
            alike = self._alike(weave, number)
            for lanes in alike:
                lane = block[lanes[0]]
                if len(lane.parts) == 2 and len(block) < sum(each.share for each in block):
                    others = [each for at, each in enumerate(block) if at != lanes[0]]
                    alone = [Lane(1, (each._replace(stop=stop),)) for each in lane.parts]
                    yield self.shared(with_block(weave, number, (*others, *alone)), number)
            singles = [at for lanes in alike for at in lanes[:2] if len(block[at].parts) == 1]
            for at, one in enumerate(singles):
                for two in singles[at + 1 :]:
                    front, behind = block[one].parts[0], block[two].parts[0]
                    cut = self._estimates.even_cut(first, front, behind.groups[0], is_front=False)
                    if cut is not None:
                        rest = [each for at, each in enumerate(block) if at not in (one, two)]
                        lane = Lane(1, (front._replace(stop=cut), behind))
                        yield self.shared(with_block(weave, number, (*rest, lane)), number)

    def _cut_anew(self, weave: Weave, numbers: Iterable[int]) -> Iterator[Weave]:
        """The plan with even parts in some blocks, where it has others.

        Blocks of one lane in a row are cut as one lane.
        """
        blocks = list(weave.blocks)
        for first, stop in {run_of(weave, number) for number in numbers}:
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

    def shared(self, weave: Weave, number: int) -> Weave:
        """The micro-batches of a block shared by what its lanes take."""
        block, first = weave.blocks[number], weave.starts[number]
        total = self._estimates.num_micro_batches
        fill_s, each_s = self._estimates.lane_rates_s(block, first)
        first_s = [fill - each for fill, each in zip(fill_s, each_s, strict=True)]
        shares = by_rates(first_s, each_s, total)
        if shares is None:
            return weave
        lanes = tuple(lane._replace(share=own) for lane, own in zip(block, shares, strict=True))
        return with_block(weave, number, lanes)
