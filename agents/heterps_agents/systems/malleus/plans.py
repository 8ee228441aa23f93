"""What Malleus plans with: groups of devices, pipelines of them, and what they are compared with.

Seconds are in units of one layer and micro-batch on a normal group: one of the usual size, none of
whose devices is slow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class UniformPlan(NamedTuple):
    """The plan without stragglers, all of whose stages and pipelines are the same.

    Attributes:
        num_pipelines: Which share the micro-batches.
        num_stages: Of each pipeline; one that goes round stragglers has no more.
        group_size: Devices of a stage.
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

    def without_idle(self, nodes: Sequence[Sequence[str]]) -> StragglerPlan:
        """The same, which names the devices of the nodes that have no layers."""
        working = {name for pipeline in self.pipelines for name in pipeline.devices}
        idle = (name for node in nodes for name in node if name not in working)
        return self._replace(suspended=tuple(idle))


# The devices of the groups of each pipeline, from the front.
Groups = tuple[tuple[tuple[str, ...], ...], ...]


def uniform_groups(nodes: Sequence[Sequence[str]], uniform: UniformPlan) -> Groups | None:
    """The groups of the equal plan: neighbours on a node; None where the nodes lack devices."""
    size, stages = uniform.group_size, uniform.num_stages
    found = [
        tuple(node[start : start + size])
        for node in nodes
        for start in range(0, len(node) - size + 1, size)
    ]
    if len(found) < uniform.num_pipelines * stages:
        return None
    return tuple(
        tuple(found[index * stages : (index + 1) * stages])
        for index in range(uniform.num_pipelines)
    )


def uniform_seconds(ratios: Mapping[str, float], uniform: UniformPlan) -> float:
    """What the equal plan takes: every stage and pipeline the same, the slowest device decides.

    Where layers or micro-batches cannot be shared equally, those with one more decide.
    """
    layers = math.ceil(uniform.num_layers / uniform.num_stages)
    micro_batches = math.ceil(uniform.num_micro_batches / uniform.num_pipelines)
    return layers * micro_batches * max([1.0, *ratios.values()])


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
