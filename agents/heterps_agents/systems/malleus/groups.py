"""Groups of a node's devices: a straggler is split off, into smaller groups or alone.

A group of t devices takes as long as its slowest one does in a group of that size. What smaller
groups cost in efficiency is thereby counted: two groups of one device are together as fast as a
group of two only where tensor parallelism costs nothing. Of a node the quick devices are in the
large groups: its devices are ordered by speed, and cut into groups that do not grow. A device that
no group of an allowed size has room for is left over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

from heterps_agents.systems.malleus.plans import Group

# Slow-down, number of devices, memory: groups that have these in common are alike.
Kind = tuple[float, int, float]
# Devices below this ratio count as normal.
STRAGGLER_RATIO = 1.2
# Ways to group the devices of all nodes; of more each node takes part with its quickest ones only.
MAX_GROUPINGS = 2000


class Pace(Protocol):
    """How long devices take."""

    @property
    def size(self) -> int:
        """Devices of a normal group."""
        ...

    @property
    def degrees(self) -> tuple[int, ...]:
        """Devices that a group may have, smallest first; none is above `size`."""
        ...

    def seconds(self, device: str, degree: int) -> float:
        """Of a layer on a device of a group of so many, over those of a normal group."""
        ...


@dataclass(frozen=True)
class RatioPace:
    """The pace by measured slow-downs, the same in groups of any size.

    Args:
        ratios: Measured over normal seconds of each device; missing: 1. Below `STRAGGLER_RATIO`
            they count as 1.
        size: Devices of a normal group, a power of two.
        factor: Seconds of a group of n, n/2, n/4, ... devices over those of n.
    """

    ratios: Mapping[str, float]
    size: int
    factor: Sequence[float]

    @property
    def degrees(self) -> tuple[int, ...]:
        """Powers of two."""
        return tuple(2**index for index in range(self.size.bit_length()))

    def seconds(self, device: str, degree: int) -> float:
        """The device's own ratio, and the factor of the size."""
        ratio = self.ratios.get(device, 1.0)
        own = ratio if ratio >= STRAGGLER_RATIO else 1.0
        return own * self.factor[int(math.log2(self.size / degree))]


def group_of(devices: Sequence[str], pace: Pace) -> Group:
    """The devices as a group."""
    degree = len(devices)
    slowdown = max(pace.seconds(name, degree) for name in devices)
    return Group(tuple(devices), slowdown, pace.size / degree)


def groupings(
    nodes: Sequence[Sequence[str]], pace: Pace, places: int, kind: Callable[[Group], Kind]
) -> list[list[Group]]:
    """Ways to group the devices of all nodes, those first that could be the quickest.

    Args:
        nodes: Devices of each.
        pace: Of the devices.
        places: Groups that can have work.
        kind: Of a group; those of one kind are alike, whichever node they are on.
    """
    options = [_of_node(node, pace) for node in nodes]
    if math.prod(map(len, options)) > MAX_GROUPINGS:
        most = max(1, int(MAX_GROUPINGS ** (1 / len(options)) + 1e-9))
        own_places = -(-places // len(nodes))
        options = [
            sorted(own, key=lambda groups: -speed(groups, own_places))[:most] for own in options
        ]
    found: dict[tuple[Kind, ...], list[Group]] = {}
    for parts in product(*options):
        groups = [group for part in parts for group in part]
        found.setdefault(tuple(sorted(map(kind, groups))), groups)
    return sorted(found.values(), key=lambda groups: -speed(groups, places))


def speed(groups: Sequence[Group], places: int) -> float:
    """Layers of a normal group's time that the quickest of some groups do, as many as `places`."""
    return sum(sorted((1 / group.slowdown for group in groups), reverse=True)[:places])


def _of_node(node: Sequence[str], pace: Pace) -> list[list[Group]]:
    least = pace.degrees[0]
    ordered = sorted(node, key=lambda name: (pace.seconds(name, least), node.index(name)))
    return [
        [group_of(part, pace) for part in parts] for parts in _parts(ordered, pace.degrees[::-1])
    ]


def _parts(ordered: Sequence[str], degrees: Sequence[int]) -> Iterator[list[Sequence[str]]]:
    """All cuts from the front into groups that do not grow; degrees are the largest first."""
    fitting = [degree for degree in degrees if degree <= len(ordered)]
    if not fitting:
        yield []
    for index, degree in enumerate(fitting):
        for behind in _parts(ordered[degree:], fitting[index:]):
            yield [ordered[:degree], *behind]
