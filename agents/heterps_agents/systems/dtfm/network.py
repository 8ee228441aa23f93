"""What two devices take to exchange a part of a gradient, or an activation, by their link."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers


class Traffic(NamedTuple):
    """Seconds between every two of N devices, the same in both directions.

    Attributes:
        gradient_s: (N, N) for two members of a group to give each other their parts of the
            gradient's sum and to get them back: there and back.
        activation_s: (N, N) for the activations of a step from one member to its partner in the
            next group.
    """

    gradient_s: Floats
    activation_s: Floats

    @property
    def num_devices(self) -> int:
        """Number of devices, N."""
        return len(self.gradient_s)

    def kinds(self) -> Integers:
        """(N,) numbers that devices share which could change places and nothing would change."""
        size = self.num_devices
        kind, first_ones = np.full(size, -1), list[int]()
        for device in range(size):
            for number, first in enumerate(first_ones):
                if self._are_twins(first, device):
                    kind[device] = number
                    break
            else:
                kind[device] = len(first_ones)
                first_ones.append(device)
        return kind

    def _are_twins(self, one: int, other: int) -> bool:
        for seconds in self:
            same = seconds[one] == seconds[other]
            same[[one, other]] = True
            if not same.all():
                return False
        return True


def traffic_of(
    latency_s: Floats,
    bandwidth_bytes_per_s: Floats,
    *,
    gradient_bytes: float,
    activation_bytes: float,
    group_size: int,
) -> Traffic:
    """DT-FM's seconds between two devices: a member of a group sums an equal part of the gradient.

    Args:
        latency_s: (N, N) of the links; of two directions the mean is taken.
        bandwidth_bytes_per_s: (N, N) of the links.
        gradient_bytes: Of one group's layers.
        activation_bytes: Of one member's samples in a step.
        group_size: Members of a group.
    """
    gradient_s = 2 * (latency_s + gradient_bytes / group_size / bandwidth_bytes_per_s)
    activation_s = latency_s + activation_bytes / bandwidth_bytes_per_s
    pair = [(seconds + seconds.T) / 2 for seconds in (gradient_s, activation_s)]
    for seconds in pair:
        np.fill_diagonal(seconds, 0.0)
    return Traffic(*pair)
