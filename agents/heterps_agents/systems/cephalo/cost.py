"""Cephalo's cost: what a device takes for its micro-batches under fully sharded data parallelism.

A layer's weights are gathered before each of its passes, its gradients are scattered behind the
backward pass, and activations are computed again. Of each layer with gathering `AG`, scattering
`RS` and m micro-batches of size s a device takes

    max(AG, m F(s)) + max(AG + RS, m F(s) + (m - 1) further + m B(s))

with F and B linear in s. Uneven shards make collectives longer by a factor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers

# Published: what collectives of uneven shards take, over those of even ones.
UNEVEN = 1.25
# Published: seconds that a layer's further micro-batches take beside their passes, each.
FURTHER_S = 10e-3


class Line(NamedTuple):
    """(L,) seconds of layers' passes, linear in the samples of a micro-batch."""

    slope_s: Floats
    start_s: Floats


class DeviceTimes(NamedTuple):
    """Passes of a device."""

    forward: Line
    backward: Line


class Collectives(NamedTuple):
    """(L,) seconds of a layer's collectives.

    Attributes:
        gather_s: Its weights, for the forward pass.
        again_s: The same for the backward pass.
        scatter_s: Its gradients.
    """

    gather_s: Floats
    again_s: Floats
    scatter_s: Floats

    def uneven(self) -> Collectives:
        """With shards that are not all of one size."""
        return Collectives(*(UNEVEN * each for each in self))

    def weights_kept(self) -> Collectives:
        """With weights that stay on the devices from the forward to the backward pass."""
        return self._replace(again_s=np.zeros_like(self.again_s))

    def none(self) -> Collectives:
        """As if nothing was sharded."""
        return Collectives(*(np.zeros_like(each) for each in self))


def device_seconds(
    times: DeviceTimes,
    collectives: Collectives,
    counts: Integers,
    sizes: Integers,
    further_s: float = FURTHER_S,
) -> Floats:
    """(N,) seconds of a step for N ways to take samples; one without takes part in collectives.

    Args:
        times: Of the device.
        collectives: That all devices take part in.
        counts: (N,) micro-batches.
        sizes: (N,) samples of each.
        further_s: Of each micro-batch but the first, beside its passes, for each layer.
    """
    total, more = np.zeros(len(counts)), further_s * np.maximum(counts - 1, 0)
    forward, backward = times
    for layer in range(len(forward.slope_s)):
        ahead = counts * _at(forward, layer, sizes)
        behind = ahead + more + counts * _at(backward, layer, sizes)
        gather_s, again_s, scatter_s = (each[layer] for each in collectives)
        total += np.maximum(gather_s, ahead)
        total += np.maximum(again_s + scatter_s, behind)
    return total


def _at(line: Line, layer: int, sizes: Integers) -> Floats:
    # A line through measured times may cross zero.
    return np.asarray(np.maximum(line.slope_s[layer] * sizes + line.start_s[layer], 0.0))
