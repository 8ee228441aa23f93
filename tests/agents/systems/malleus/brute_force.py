"""All that `regroup` may answer with, tried one by one: for small clusters only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations, product

from heterps_agents.systems.malleus.groups import Pace
from heterps_agents.systems.malleus.memory import StageMemory
from heterps_agents.systems.malleus.plans import Group, UniformPlan


def least_seconds(
    pace: Pace, nodes: Sequence[Sequence[str]], uniform: UniformPlan, memory: StageMemory | None
) -> float:
    """Of all groupings whose groups do not grow, dealt in any way with slow groups in front."""
    quickest = min(pace.seconds(name, d) for node in nodes for name in node for d in pace.degrees)
    best = math.inf
    for parts in product(*(list(_of_node(node, pace)) for node in nodes)):
        groups = [group for part in parts for group in part]
        total = min(len(groups), uniform.num_pipelines * uniform.num_stages)
        groups = sorted(groups, key=lambda group: group.slowdown)[:total]
        for dealt in _dealt(groups, uniform.num_pipelines):
            best = min(best, _seconds(dealt, uniform, memory, quickest))
    return best


def _of_node(node: Sequence[str], pace: Pace) -> Iterator[list[Group]]:
    ordered = sorted(node, key=lambda name: (pace.seconds(name, pace.degrees[0]), node.index(name)))
    for count in range(len(node) + 1):
        for sizes in product(pace.degrees, repeat=count):
            left = len(node) - sum(sizes)
            if list(sizes) != sorted(sizes, reverse=True) or left < 0:
                continue
            # Nothing is left out that another group could be made of.
            if any(
                degree <= left and degree <= min(sizes, default=left) for degree in pace.degrees
            ):
                continue
            ends = [sum(sizes[: index + 1]) for index in range(count)]
            yield [
                _group(ordered[end - size : end], pace)
                for end, size in zip(ends, sizes, strict=True)
            ]


def _group(devices: Sequence[str], pace: Pace) -> Group:
    slowest = max(pace.seconds(name, len(devices)) for name in devices)
    return Group(tuple(devices), slowest, pace.size / len(devices))


def _dealt(groups: Sequence[Group], num_pipelines: int) -> Iterator[list[list[Group]]]:
    """Every order of the groups, cut into pipelines whose lengths differ by one at most."""
    even, more = divmod(len(groups), num_pipelines)
    if not even:
        return
    lengths = [even + (index < more) for index in range(num_pipelines)]
    ends = [sum(lengths[: index + 1]) for index in range(num_pipelines)]
    for order in permutations(groups):
        yield [list(order[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _seconds(
    dealt: Sequence[Sequence[Group]],
    uniform: UniformPlan,
    memory: StageMemory | None,
    quickest: float,
) -> float:
    passes_s = []
    for groups in dealt:
        are_slow = [group.slowdown > quickest for group in groups]
        if are_slow != sorted(are_slow, reverse=True):
            return math.inf
        passes_s.append(
            min(
                (
                    max(group.slowdown * count for group, count in zip(groups, layers, strict=True))
                    for layers in product(range(uniform.num_layers + 1), repeat=len(groups))
                    if sum(layers) == uniform.num_layers
                    and (memory is None or _fits(groups, layers, memory))
                ),
                default=math.inf,
            )
        )
    return min(
        (
            max(seconds * count for seconds, count in zip(passes_s, shares, strict=True))
            for shares in product(range(uniform.num_micro_batches + 1), repeat=len(dealt))
            if sum(shares) == uniform.num_micro_batches
            and all(count >= len(own) for count, own in zip(shares, dealt, strict=True))
        ),
        default=math.inf,
    )


def _fits(groups: Sequence[Group], layers: Sequence[int], memory: StageMemory) -> bool:
    return all(
        count <= memory.most_layers(stage, len(groups), group.share, group.devices)
        for stage, (group, count) in enumerate(zip(groups, layers, strict=True))
    )
