"""Offloading: what goes to host memory and comes back, and the seconds that this cannot hide.

A layer's copy to host memory runs beside the layer's forward pass, and its copy back beside its
backward pass, over the link between device and host, which carries both directions at a time. So a
layer that is offloaded takes as long as the slower of the two. On the device stay what crosses the
ends of the stage, and on a GPU two layers' worth at a time: one being computed, one on its way. On
a CPU each tensor is copied at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.device import DeviceType
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.kept_memory import LayerMemory
from heterps_envs.layer_costs.seconds import LayerTimes


class Offload(NamedTuple):
    """L layers on T device classes, one full micro-batch.

    Attributes:
        moved_bytes: (L, T) each way, where the layer is offloaded.
        passing_bytes: (L, T) of them and of another layer's, what is on the device for a while.
        forward_s: (L, T) by which its forward pass takes longer; inf without a link to the host.
        backward_s: (L, T) the same of its backward pass.
    """

    moved_bytes: Floats
    passing_bytes: Floats
    forward_s: Floats
    backward_s: Floats


def offload(times: LayerTimes, memory: LayerMemory, types: Sequence[DeviceType]) -> Offload:
    """What offloading takes, layer by layer.

    Args:
        times: Of the layers.
        memory: What they keep.
        types: (T,) device types.
    """
    moved = memory.chain_bytes() - memory.shared_bytes
    bandwidth = np.array([entry.host_bandwidth_bytes_per_s or 0.0 for entry in types])
    copy_s = np.divide(moved, bandwidth, out=np.full_like(moved, np.inf), where=bandwidth > 0)
    layers_at_once = np.array([0.0 if entry.kind == "cpu" else 2.0 for entry in types])
    return Offload(
        moved,
        moved * layers_at_once,
        np.maximum(copy_s - times.forward_s, 0.0),
        np.maximum(copy_s - times.backward_s, 0.0),
    )
