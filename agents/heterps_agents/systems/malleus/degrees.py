"""What a problem says of groups: seconds and bytes of its layers on groups of every size.

Malleus measures, for its model and its devices, what a smaller group loses or gains in efficiency.
Here these are the problem's own times: measured on groups of that size, or scaled to them, with the
sums over the group. So a device may also be slower in a group than others are by another ratio
than alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heterps_agents.systems.malleus.groups import STRAGGLER_RATIO
from heterps_agents.systems.malleus.memory import DegreeMemory, StageMemory
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import StageOption, option_tables
from heterps_envs.problem import Problem

# Where a class takes no time at all, the others are infinitely slower but for this.
LEAST_S = 1e-15


@dataclass(frozen=True)
class DegreeTimes:
    """Seconds and bytes of groups of the devices of a problem.

    Args:
        problem: Its layers count as their mean.
        degrees: Devices that a group may have, smallest first.
    """

    problem: Problem
    degrees: tuple[int, ...]

    @cached_property
    def whole_s(self) -> dict[int, list[float]]:
        """Of one micro-batch through all layers: for each degree, on a group of each class."""
        seconds = self._tables.compute_s.sum(axis=0).reshape(len(self.degrees), -1)
        return dict(zip(self.degrees, np.maximum(seconds, LEAST_S).tolist(), strict=True))

    @cached_property
    def class_of(self) -> Mapping[str, int]:
        """The class of each device."""
        return self.problem.class_of

    def pace(self, size: int) -> DegreePace:
        """Where a normal group has so many devices."""
        return DegreePace(self, size)

    def layer_s(self, size: int) -> float:
        """Seconds of a micro-batch and a layer on a normal group of so many."""
        return min(self.whole_s[size]) / self.problem.tables.num_layers

    def memory(self, num_stages: int) -> DegreeMemory:
        """The mean layer's bytes, with as many micro-batches in flight as stages are left."""
        tables, options = self._tables, self._tables.stage_options
        plain = self.problem.tables
        in_flight = [
            plain.num_micro_batches if plain.is_gpipe else num_stages - stage
            for stage in range(num_stages)
        ]
        kinds = len(self.problem.classes)
        found = {}
        for number, degree in enumerate(self.degrees):
            own = slice(number * kinds, (number + 1) * kinds)
            state, kept = (
                float(each[:, own].mean())
                for each in (options.state_bytes, options.activation_bytes)
            )
            limits = {n: float(tables.memory_bytes[own][k]) for n, k in self.class_of.items()}
            per_layer = tuple(state + held * kept for held in in_flight)
            found[degree] = StageMemory(per_layer, 0.0, 0.0, min(limits.values()), limits)
        return DegreeMemory(found)

    @cached_property
    def _tables(self) -> CostTables:
        """A column for each class, degree by degree."""
        return option_tables(
            self.problem,
            tuple(
                StageOption(kind, degree)
                for degree in self.degrees
                for kind in range(len(self.problem.classes))
            ),
        )


@dataclass(frozen=True)
class DegreePace:
    """The pace of devices in groups up to a size; see `heterps_agents.systems.malleus.groups.Pace`.

    Devices that are slower than the quickest class by less than `STRAGGLER_RATIO` count as it.

    Args:
        times: Of groups.
        size: Devices of a normal group.
    """

    times: DegreeTimes
    size: int

    @property
    def degrees(self) -> tuple[int, ...]:
        """Those of the times, up to the size of a normal group."""
        return tuple(degree for degree in self.times.degrees if degree <= self.size)

    def seconds(self, device: str, degree: int) -> float:
        """By the times of the device's class in groups of that size."""
        whole_s = self.times.whole_s
        quickest_s = min(whole_s[degree])
        ratio = whole_s[degree][self.times.class_of[device]] / quickest_s
        own = ratio if ratio >= STRAGGLER_RATIO else 1.0
        return own * quickest_s / min(whole_s[self.size])
