"""Stragglers: layers, micro-batches and groups anew from slow-down ratios, as Malleus does.

Source: Malleus (arXiv 2410.13333, section 4) and the behaviour of its planner. A group of t devices
of a node works on a stage together (tensor parallel); with n devices being normal, its slow-down is
the largest of its devices' times n / t. Pipelines are built of such groups with the slow ones in
front, where layers need most memory and a slow group has few of them. Two problems remain: layers
for the groups of a pipeline (`min o = max y_j l_j`) and micro-batches for the pipelines
(`min max o_i m_i`). Both are small integer programmes; they are solved here exactly by raising the
limit to the next value that any variable can take.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from types import MappingProxyType
from typing import NamedTuple

from heterps_configs.errors import InfeasibleError

# Devices below this ratio count as normal.
STRAGGLER_RATIO = 1.2
# All ways of dealing more slow groups than this to pipelines are too many; they are dealt evenly.
MAX_ENUMERATED = 6
# Ways to deal them to pipelines: all of six to four pipelines.
MAX_PATTERNS = 5000


class StageMemory(NamedTuple):
    """Bytes (or any unit) that a stage of a pipeline takes on a device of a normal group.

    Attributes:
        per_layer: For each stage from the front; it falls where fewer micro-batches are in flight.
        embedding: Of the first and of the last stage, beside their layers.
        extra: Of any device.
        limit: Of any device that is not named in `limits`.
        limits: Of devices by name.
    """

    per_layer: tuple[float, ...]
    embedding: float
    extra: float
    limit: float
    limits: Mapping[str, float] = MappingProxyType({})

    def most_layers(
        self, stage: int, num_stages: int, ratio: float, devices: Sequence[str] = ()
    ) -> int:
        """Layers that fit on a group, some devices, that is smaller than normal by a ratio."""
        fixed = self.embedding if stage in (0, num_stages - 1) else 0.0
        # Of a pipeline with other than the usual number of stages the last ones stay the last.
        index = max(0, len(self.per_layer) - num_stages + stage)
        limit = min((self.limits.get(name, self.limit) for name in devices), default=self.limit)
        room = (limit - self.extra) / ratio - fixed
        if self.per_layer[index] <= 0:  # layers that hold nothing
            return sys.maxsize if room >= 0 else 0
        return max(0, math.floor(room / self.per_layer[index] + 1e-9))


class UniformPlan(NamedTuple):
    """The plan without stragglers, all of whose stages and pipelines are the same.

    Attributes:
        num_pipelines: Which share the micro-batches.
        num_stages: Of each pipeline.
        group_size: Devices of a stage, a power of two.
        num_layers: Of the model.
        num_micro_batches: Of the global batch.
    """

    num_pipelines: int
    num_stages: int
    group_size: int
    num_layers: int
    num_micro_batches: int


class Group(NamedTuple):
    """Devices of one node that work on a stage together.

    Attributes:
        devices: Their names.
        slowdown: Seconds of a layer over those of a normal group; 1 is normal.
        share: Devices of a normal group for each of its own; what its devices need more of memory.
    """

    devices: tuple[str, ...]
    slowdown: float
    share: float


class StragglerPipeline(NamedTuple):
    """A pipeline: its groups from the front, their layers, and its micro-batches."""

    groups: tuple[Group, ...]
    layers: tuple[int, ...]
    seconds: float
    micro_batches: int

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that have layers."""
        stages = zip(self.groups, self.layers, strict=True)
        return tuple(name for group, count in stages if count for name in group.devices)


class StragglerPlan(NamedTuple):
    """Pipelines, and devices that would only hold the others up.

    Attributes:
        pipelines: In the order of their number of stragglers, fewest last.
        suspended: Devices without work.
        seconds: Of the slowest pipeline, in units of one layer and micro-batch on a normal group.
    """

    pipelines: tuple[StragglerPipeline, ...]
    suspended: tuple[str, ...]
    seconds: float


def split_least(
    slowdowns: Sequence[float],
    total: int,
    most: Sequence[int] | None = None,
    least: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Integers that add up to a total and minimise `max slowdown_i n_i`, exactly.

    The smallest limit at which all have room enough is a multiple of one of the slow-downs. Below
    it, each takes what is left over, the quickest first.

    Args:
        slowdowns: Seconds of one unit.
        total: Units (layers of a pipeline, micro-batches of all pipelines).
        most: Units that each has room for.
        least: Units that each must take.

    Raises:
        InfeasibleError: There is too little room, or the least together are too many.
    """
    size = len(slowdowns)
    low, high = list(least or [0] * size), list(most or [total] * size)
    if any(a > b for a, b in zip(low, high, strict=True)) or sum(low) > total or sum(high) < total:
        raise InfeasibleError(
            f"{total} cannot be shared: at least {low} and at most {high} are asked for"
        )

    def room(limit: float) -> list[int]:
        return [
            max(a, min(b, math.floor(limit / y + 1e-9)))
            for a, b, y in zip(low, high, slowdowns, strict=True)
        ]

    limits = sorted({y * n for y, b in zip(slowdowns, high, strict=True) for n in range(b + 1)})
    first, last = 0, len(limits) - 1
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if sum(room(limits[middle])) >= total else (middle + 1, last)
    found = room(limits[first])
    # The slowest give back what is too much.
    for index in sorted(range(size), key=lambda i: (-slowdowns[i], i)):
        found[index] -= min(found[index] - low[index], sum(found) - total)
    return tuple(found)


def replan_stragglers(
    ratios: Mapping[str, float],
    nodes: Sequence[Sequence[str]],
    uniform: UniformPlan,
    memory: StageMemory | None = None,
    group_factor: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
) -> StragglerPlan:
    """Pipelines that go round stragglers.

    Args:
        ratios: Measured over normal seconds of each device; missing: 1.
        nodes: Devices of each node.
        uniform: Whose pipelines stay as many; `num_stages` is that of one without stragglers.
        memory: Of stages; None: without limit.
        group_factor: Seconds of a group of n, n/2, n/4, ... devices over those of n.

    Raises:
        InfeasibleError: There are too few groups, or the layers do not fit.
    """
    slow = {
        name: value if (value := ratios.get(name, 1.0)) >= STRAGGLER_RATIO else 1.0
        for node in nodes
        for name in node
    }
    groups = [
        group
        for node in nodes
        for group in _groups_of_node(node, slow, uniform.group_size, group_factor)
    ]
    best: StragglerPlan | None = None
    for dealt in _dealt(groups, uniform.num_pipelines, uniform.num_stages):
        plan = _solved(dealt, uniform, memory)
        if plan is not None and (best is None or plan.seconds < best.seconds):
            best = plan
    if best is None:
        raise InfeasibleError(
            f"{uniform.num_layers} layers fit on no {uniform.num_pipelines} pipelines of the "
            f"{len(groups)} groups of its devices that are left"
        )
    working = {name for pipeline in best.pipelines for name in pipeline.devices}
    return best._replace(
        suspended=tuple(name for node in nodes for name in node if name not in working)
    )


def proportional_bound(
    ratios: Mapping[str, float], num_devices: int, normal_seconds: float
) -> float:
    """Seconds if work could be shared in proportion to speed, devices faster than 1 counted as 1.

    Args:
        ratios: Of the devices that are not normal.
        num_devices: Of all.
        normal_seconds: Without stragglers.
    """
    speed = num_devices - len(ratios) + sum(1 / max(ratio, 1.0) for ratio in ratios.values())
    return normal_seconds * num_devices / speed


def uniform_seconds(ratios: Mapping[str, float], uniform: UniformPlan) -> float:
    """What the equal plan takes: every stage and pipeline the same, the slowest device decides."""
    layers = uniform.num_layers / uniform.num_stages
    worst = max([1.0, *ratios.values()])
    return layers * (uniform.num_micro_batches / uniform.num_pipelines) * worst


def _groups_of_node(
    node: Sequence[str], slow: Mapping[str, float], size: int, factor: Sequence[float]
) -> list[Group]:
    """Groups of a node with the most speed together.

    Normal devices fill whole groups. What is left of them and the stragglers, slowest last, is cut
    into groups of powers of two, each at most half as large as the one before it; a device
    that is in none is suspended.
    """
    ordered = sorted(node, key=lambda name: (slow[name], node.index(name)))
    num_whole = max(0, len(ordered) // size - 1) * size
    while num_whole + size <= len(ordered) and slow[ordered[num_whole + size - 1]] == 1.0:
        num_whole += size
    whole = [
        _group(ordered[start : start + size], slow, size, factor)
        for start in range(0, num_whole, size)
    ]
    rest = ordered[num_whole:]
    options = [[_group(part, slow, size, factor) for part in parts] for parts in _parts(rest, size)]
    best = max(options, key=lambda groups: sum(1 / group.slowdown for group in groups), default=[])
    return whole + best


def _parts(rest: Sequence[str], size: int) -> Iterator[list[Sequence[str]]]:
    """Descending powers of two from the front of what is left."""
    start_size = size
    while start_size >= 1:
        parts, first, width = [], 0, start_size
        while width >= 1 and first + width <= len(rest):
            parts.append(rest[first : first + width])
            first += width
            width //= 2
        if parts:
            yield parts
        start_size //= 2


def _group(
    devices: Sequence[str], slow: Mapping[str, float], size: int, factor: Sequence[float]
) -> Group:
    share = size / len(devices)
    slowdown = max(slow[name] for name in devices) * factor[int(math.log2(share))]
    return Group(tuple(devices), slowdown, share)


def _dealt(
    groups: Sequence[Group], num_pipelines: int, num_stages: int
) -> Iterator[list[list[Group]]]:
    """Ways to deal the groups to pipelines, slow ones in front of each.

    Every way to deal the slow groups is tried where there are few of them; normal groups fill the
    pipelines up to their length.
    """
    normal = [group for group in groups if group.slowdown <= 1.0]
    lengths = _lengths(len(groups), num_pipelines, num_stages)
    if lengths is None:
        return
    slow = sorted((g for g in groups if g.slowdown > 1.0), key=lambda g: -g.slowdown)
    # The slowest have no place where others suffice.
    slow = slow[max(0, len(groups) - sum(lengths)) :]
    seen = set()
    for pattern in _patterns(len(slow), lengths):
        # Groups of equal slow-downs are alike, and so are pipelines of equal lengths.
        alike = ([slow[index][1:] for index in own] for own in pattern)
        key = tuple(sorted((n, *own) for n, own in zip(lengths, alike, strict=True)))
        if key in seen:
            continue
        seen.add(key)
        pipelines, free = [], iter(normal)
        for length, own in zip(lengths, pattern, strict=True):
            front = [slow[index] for index in own]
            pipelines.append([*front, *(next(free) for _ in range(length - len(front)))])
        yield sorted(pipelines, key=lambda p: -sum(g.slowdown > 1.0 for g in p))


def _lengths(num_groups: int, num_pipelines: int, num_stages: int) -> list[int] | None:
    """Stages of each pipeline: as before where the groups suffice, else as even as possible."""
    total = min(num_groups, num_pipelines * num_stages)
    if total < num_pipelines:
        return None
    even, more = divmod(total, num_pipelines)
    return [even + (index < more) for index in range(num_pipelines)]


def _patterns(num_slow: int, lengths: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Which slow groups each pipeline has; of equal pipelines one order only."""
    if num_slow > MAX_ENUMERATED or len(lengths) ** num_slow > MAX_PATTERNS:
        dealt: list[list[int]] = [[] for _ in lengths]
        for index in range(num_slow):
            open_ = [i for i, own in enumerate(dealt) if len(own) < lengths[i]]
            dealt[min(open_, key=lambda i: len(dealt[i]))].append(index)
        yield tuple(map(tuple, dealt))
        return

    def rest(
        left: tuple[int, ...], pipelines: Sequence[int]
    ) -> Iterator[tuple[tuple[int, ...], ...]]:
        if not pipelines:
            if not left:
                yield ()
            return
        for count in range(min(len(left), pipelines[0]) + 1):
            for own in combinations(left, count):
                others = tuple(index for index in left if index not in own)
                for behind in rest(others, pipelines[1:]):
                    yield (own, *behind)

    yield from rest(tuple(range(num_slow)), lengths)


def _solved(
    dealt: Sequence[Sequence[Group]], uniform: UniformPlan, memory: StageMemory | None
) -> StragglerPlan | None:
    """Layers of every pipeline, then micro-batches; None where either does not fit."""
    found: list[tuple[Sequence[Group], tuple[int, ...], float]] = []
    for groups in dealt:
        split = _split_layers(groups, uniform.num_layers, memory)
        if split is None:
            return None
        found.append(split)
    try:
        shares = split_least(
            [seconds for _, _, seconds in found],
            uniform.num_micro_batches,
            least=[len(groups) for groups, _, _ in found],
        )
    except InfeasibleError:
        return None
    pipelines = tuple(
        StragglerPipeline(tuple(groups), layers, seconds, share)
        for (groups, layers, seconds), share in zip(found, shares, strict=True)
    )
    slowest = max(pipeline.seconds * pipeline.micro_batches for pipeline in pipelines)
    return StragglerPlan(pipelines, (), slowest)


def _split_layers(
    groups: Sequence[Group], num_layers: int, memory: StageMemory | None
) -> tuple[Sequence[Group], tuple[int, ...], float] | None:
    """The order of the slow groups, all in front, whose slowest stage is the quickest."""
    slow = [group for group in groups if group.slowdown > 1.0]
    normal = [group for group in groups if group.slowdown <= 1.0]
    best: tuple[Sequence[Group], tuple[int, ...], float] | None = None
    for front in _orders(slow) if memory else [tuple(slow)]:
        ordered = (*front, *normal)
        slowdowns = [group.slowdown for group in ordered]
        most = memory and [
            min(num_layers, memory.most_layers(index, len(ordered), group.share, group.devices))
            for index, group in enumerate(ordered)
        ]
        try:
            layers = split_least(slowdowns, num_layers, most)
        except InfeasibleError:
            continue
        seconds = max(y * n for y, n in zip(slowdowns, layers, strict=True))
        if best is None or seconds < best[2]:
            best = ordered, layers, seconds
    return best


def _orders(slow: Sequence[Group]) -> list[tuple[Group, ...]]:
    """Orders of the slow groups that differ in their slow-downs; one, where they are many."""
    if len(slow) > MAX_ENUMERATED:
        return [tuple(slow)]
    orders: dict[tuple[tuple[float, float], ...], tuple[Group, ...]] = {}
    for order in permutations(slow):
        orders.setdefault(tuple((group.slowdown, group.share) for group in order), order)
    return list(orders.values())
