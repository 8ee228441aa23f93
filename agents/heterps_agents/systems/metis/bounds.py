"""What a layout costs at least, and whether it can have room: such that searches look elsewhere."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from heterps_agents.systems.degrees import at_degree
from heterps_agents.systems.metis.groups import LEAST_S, Devices, Group
from heterps_envs.arrays import Floats


class Bounds:
    """Bounds over all cuts of the layers, and all groups that stages may still come to.

    Args:
        devices: What Metis knows of them.
    """

    def __init__(self, devices: Devices) -> None:
        self.devices = devices
        self._covers: dict[tuple[int, int], float] = {}

    def cost_s(self, groups: tuple[Group, ...], rounds: int) -> float:
        """No cut of the layers costs less, as if they could be cut anywhere.

        Of all ways to share the model, some of the quickest stages end together, the others have
        nothing: what is shorter for the slowest stage is longer for their sum.
        """
        speed, least_s = 0.0, float("inf")
        for number, whole_s in enumerate(sorted(map(self._least_whole_s, groups)), 1):
            speed += 1 / whole_s
            least_s = min(least_s, (rounds - 1 + number) / speed)
        return self._least_work * least_s

    def have_room(self, groups: tuple[Group, ...]) -> bool:
        """False where all stages together have no room for the model once."""
        return sum(map(self._covered, groups)) >= self._least_bytes

    @cached_property
    def _least_work(self) -> float:
        """Of the model's seconds on a device, each layer's share where that is least, in all."""
        least = np.ones(self.devices.problem.tables.num_layers)
        for degree in self.devices.degrees:
            seconds = at_degree(self.devices.problem, degree).compute_s + LEAST_S
            least = np.minimum(least, (seconds / seconds.sum(axis=0)).min(axis=1))
        # A little less, for sums in another order.
        return float(least.sum()) * (1 - 1e-9)

    def _least_whole_s(self, group: Group) -> float:
        """A round through the whole model on the quickest groups of the stage's devices."""
        degrees = [degree for degree in self.devices.degrees if degree > group.degree]
        round_size = sum(group.shares)
        found = (self.devices.group(group.devices, degree, round_size) for degree in degrees)
        return min([group.whole_s, *(own.whole_s for own in found if own is not None)])

    @cached_property
    def _least_bytes(self) -> float:
        """What one device alone would hold of the whole model."""
        return float(self._held(1).sum(axis=0).min())

    def _covered(self, group: Group) -> float:
        """Of what one device alone would hold, at most so many bytes have room in a stage."""
        kinds = [kind for kind, _ in group.busiest]
        degrees = [degree for degree in self.devices.degrees if degree >= group.degree]
        return max(self._covered_by(kind, degree) for kind in kinds for degree in degrees)

    def _covered_by(self, kind: int, degree: int) -> float:
        key = kind, degree
        if key not in self._covers:
            smaller = self._held(1)[:, kind] / np.maximum(self._held(degree)[:, kind], 1.0)
            room = self.devices.sums(degree).memory_bytes[kind]
            self._covers[key] = room * float(smaller.max())
        return self._covers[key]

    def _held(self, degree: int) -> Floats:
        """(L, T) state, and activations of one micro-batch."""
        found = at_degree(self.devices.problem, degree)
        return found.state_bytes + found.activation_bytes
