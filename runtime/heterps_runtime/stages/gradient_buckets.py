"""Which ranks sum which parts of which gradients.

Replicas, and the ends of a tie, hold the same parameters. In groups that split alike, the ranks at
one position hold the same part of each, and sum it as it is. In groups that split differently, a
parameter is cut at the edges of all their slices, and each region is summed by all who hold it.
What several ranks of one group hold whole is the same there: one of them adds, the others listen.
Of keys and values whose queries are on several ranks (`shared_heads`), each has a term: all add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_envs.schedule.actions import ReduceBucket
from heterps_envs.schedule.tied import adding_layers
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.tensor_parallel.regions import Box, boxes_of, contains, cut
from heterps_runtime.tensor_parallel.slices import TensorSlice

# Ranks of each group, in its order.
Groups = tuple[tuple[int, ...], ...]
_Ranks = tuple[int, ...]


class Region(NamedTuple):
    """A part of a gradient.

    Attributes:
        name: Of the parameter.
        box: In the whole parameter; None: all that each of the ranks holds.
    """

    name: str
    box: Box | None


class Held(NamedTuple):
    """A parameter of the model.

    Attributes:
        layers: That use it.
        shape: Of the whole of it.
        groups: That hold it.
    """

    layers: tuple[int, ...]
    shape: tuple[int, ...]
    groups: Groups


@dataclass
class GradientBucket:
    """Gradients that are summed one after the other.

    Attributes:
        groups: Whose sums these are.
        rings: By the ranks of a sum, and those of them that only listen, what is summed.
        adding: Layers that have to be done; None: all.
    """

    groups: frozenset[_Ranks]
    adding: frozenset[int] | None = None
    rings: dict[tuple[_Ranks, frozenset[int]], list[Region]] = field(default_factory=dict)

    @property
    def is_alike(self) -> bool:
        """Whether all groups hold each parameter in the same parts."""
        regions = (region for own in self.rings.values() for region in own)
        return all(region.box is None for region in regions) and not any(
            listening for _, listening in self.rings
        )

    def meeting(self, rank: int) -> _Ranks:
        """Ranks that begin at the same time as this one: those at its position, if all have one."""
        own = next(group for group in self.groups if rank in group)
        if len({len(group) for group in self.groups}) > 1:
            return tuple(sorted(each for group in self.groups for each in group))
        return tuple(sorted(group[own.index(rank)] for group in self.groups))

    @property
    def meetings(self) -> set[_Ranks]:
        """Those of all ranks."""
        return {self.meeting(rank) for group in self.groups for rank in group}

    def regions_of(self, rank: int) -> Iterator[tuple[_Ranks, bool, list[Region]]]:
        """The sums of one rank, in an order that all have: ranks, whether it only listens."""
        for (ranks, listening), regions in self.rings.items():
            if rank in ranks:
                yield ranks, rank in listening, regions

    def names_of(self, rank: int) -> list[str]:
        """The parameters of one rank, each once."""
        regions = (region for _, _, own in self.regions_of(rank) for region in own)
        return list(dict.fromkeys(region.name for region in regions))


def gradient_buckets(
    specification: RunSpecification, parameters: Mapping[str, Held]
) -> list[GradientBucket]:
    """The schedule's buckets in order, then what they do not cover; the same on all ranks.

    A bucket takes a parameter that its groups hold if all layers that use it add to the bucket.

    Args:
        specification: Of the run.
        parameters: Of the model, by name.
    """
    buckets = [
        GradientBucket(_groups_of(specification, bucket), adding)
        for bucket in specification.buckets
        for adding in [adding_layers(specification.profile, bucket.layers, bucket.own_only)]
    ]
    for name in sorted(parameters):
        held = parameters[name]
        if len(held.groups) < 2:
            continue
        groups = frozenset(held.groups)
        for bucket in buckets:
            covers = bucket.adding is None or bucket.adding.issuperset(held.layers)
            if bucket.groups == groups and covers:
                break
        else:
            bucket = GradientBucket(groups)
            buckets.append(bucket)
        for ranks, listening, box in _rings(held, places_of(specification, name, held)):
            bucket.rings.setdefault((ranks, listening), []).append(Region(name, box))
    return buckets


def _slice_on(
    specification: RunSpecification, rank: int, layers: Sequence[int]
) -> GroupSlice | None:
    """What a rank has of parameters that some layers use; None: all of them."""
    device = specification.devices[rank]
    stage = next(
        stage
        for stage in specification.plan.stages
        if device in stage.devices and not set(layers).isdisjoint(stage.layers)
    )
    if stage.degree == 1 or not set(layers).isdisjoint(stage.unsplit_layers):
        return None
    shares = stage.tensor_shares or (1 / stage.degree,) * stage.degree
    return GroupSlice(stage.devices.index(device), shares)


def _groups_of(specification: RunSpecification, bucket: ReduceBucket) -> frozenset[_Ranks]:
    members = (specification.memberships[device].devices for device in bucket.devices)
    return frozenset(tuple(specification.ranks[name] for name in own) for own in members)


def places_of(
    specification: RunSpecification, name: str, held: Held
) -> dict[int, TensorSlice | None]:
    """What each rank has of a parameter; of one group's, the same or nothing in common.

    Args:
        specification: Of the run.
        name: Of the parameter.
        held: Who holds it.
    """
    split = specification.splits.get(name)
    found: dict[int, TensorSlice | None] = {}
    for group in held.groups:
        for rank in group:
            own = _slice_on(specification, rank, held.layers)
            found[rank] = split.slice(held.shape, own) if split and own else None
    return found


def _rings(
    held: Held, places: Mapping[int, TensorSlice | None]
) -> Iterator[tuple[_Ranks, frozenset[int], Box | None]]:
    """The sums of one parameter."""
    if len(ways_of(held, places)) == 1:
        for ranks in zip(*held.groups, strict=True):
            yield tuple(sorted(ranks)), frozenset(), None
        return
    for box in cut(boxes_of(held.shape, None)[0], places.values()):
        holders = [[r for r in group if contains(places[r], box)] for group in held.groups]
        listening = frozenset(rank for own in holders for rank in own[1:] if places[rank] is None)
        ranks = tuple(sorted(rank for own in holders for rank in own))
        yield ranks, listening, None if not any(places.values()) else box


def ways_of(
    held: Held, places: Mapping[int, TensorSlice | None]
) -> set[tuple[TensorSlice | None, ...]]:
    """In which ways groups hold a parameter.

    Args:
        held: Who holds it.
        places: Of each rank.
    """
    return {tuple(places[rank] for rank in group) for group in held.groups}
