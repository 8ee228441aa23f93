"""How many layers fit on a group as a stage of a pipeline."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from heterps_agents.systems.malleus.plans import Group


class Memory(Protocol):
    """Of the devices of groups."""

    def room(self, group: Group, stage: int, num_stages: int) -> int:
        """Layers that fit on a group as a stage of a pipeline, counted from the front."""
        ...

    def limit_of(self, devices: Sequence[str]) -> float:
        """Of the device that has least; groups of equal size and limit have equal room."""
        ...


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
        room = (self.limit_of(devices) - self.extra) / ratio - fixed
        if self.per_layer[index] <= 0:  # layers that hold nothing
            return sys.maxsize if room >= 0 else 0
        return max(0, math.floor(room / self.per_layer[index] + 1e-9))

    def room(self, group: Group, stage: int, num_stages: int) -> int:
        """Of a group whose devices hold more, the smaller it is."""
        return self.most_layers(stage, num_stages, group.share, group.devices)

    def limit_of(self, devices: Sequence[str]) -> float:
        """Of the device that has least."""
        return min((self.limits.get(name, self.limit) for name in devices), default=self.limit)


class DegreeMemory(NamedTuple):
    """The same where what a device holds of a layer is known for every size of its group.

    Attributes:
        by_degree: For each number of devices, what one of them holds.
    """

    by_degree: Mapping[int, StageMemory]

    def room(self, group: Group, stage: int, num_stages: int) -> int:
        """Layers that a stage on the group has room for, by what groups of its size hold."""
        own = self.by_degree[len(group.devices)]
        return own.most_layers(stage, num_stages, 1.0, group.devices)

    def limit_of(self, devices: Sequence[str]) -> float:
        """Of the device that has least."""
        return self.by_degree[len(devices)].limit_of(devices)
