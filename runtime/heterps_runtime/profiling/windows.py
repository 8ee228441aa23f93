"""Windows: runs of neighbouring layers in which a profile measures each distinct layer.

Layers of equal kind and sizes cost the same and share their samples. A window grows until what it
holds is many times larger than any cache, so that each layer finds the caches as it does in a
stage; more would only take longer. On a GPU a layer alone would also be charged with the end of
each pass, in which the host waits for the device: there a window has several layers, as far as the
memory goes. Windows without a distinct layer of their own are left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch

from heterps_configs.documents.base import BYTES_PER_ELEMENT, Dtype, parameter_format
from heterps_configs.documents.model_profile import ModelProfile

# Many times any cache: beyond it a longer window measures nothing new.
WINDOW_BYTES = 512 * 2**20
# On a GPU at least so many layers, where they fit: what a pass takes besides is shared by them.
NUM_GPU_LAYERS = 8
# Of the free memory, what all windows may take together.
MEMORY_SHARE = 0.5
# Bytes of optimizer state for each parameter: the largest, AdamW's two float32 numbers and a
# float32 copy of the weight.
_OPTIMIZER_BYTES = 12
_IN_FLIGHT = 2

Range = tuple[int, int]


class WindowLimits(NamedTuple):
    """Up to where a window grows.

    Attributes:
        num_layers: It grows to so many, and on until it holds `WINDOW_BYTES`.
        most_bytes: Beyond it no second layer is added.
    """

    num_layers: int = 1
    most_bytes: float = math.inf

    @classmethod
    def of(cls, device: str) -> Self:
        """Those of a device with the memory that is free now."""
        if torch.device(device).type != "cuda":
            return cls()
        # The end of the model may be a window of its own, and they share the memory.
        return cls(NUM_GPU_LAYERS, MEMORY_SHARE * free_bytes(device) / 3)

    def is_full(self, count: int, held: float, need: float) -> bool:
        """Whether a window of some layers takes no other that needs so much."""
        if count and held + need > self.most_bytes:
            return True
        return count >= self.num_layers and held + need > WINDOW_BYTES


def choose_windows(
    profile: ModelProfile, size: int, dtype: Dtype, limits: WindowLimits | None = None
) -> tuple[Range, ...]:
    """First and last layer (inclusive) of windows that hold every distinct layer.

    Args:
        profile: The model.
        size: Samples of the largest micro-batch.
        dtype: Format of parameters and activations.
        limits: Up to where a window grows; by default as on a CPU.
    """
    limits = limits or WindowLimits()
    windows: list[Range] = []
    first, held = 0, 0.0
    for index in range(profile.num_layers):
        need = layer_bytes(profile, index, size, dtype)
        if limits.is_full(index - first, held, need):
            windows.append((first, index - 1))
            first, held = index, 0.0
        held += need
    windows.append((first, profile.num_layers - 1))
    return tuple(_that_are_needed(windows, profile.first_equal_layers()))


def overhead_stages(
    profile: ModelProfile, size: int, dtype: Dtype, limits: WindowLimits | None = None
) -> tuple[Range, ...]:
    """Stages that tell what a stage takes beside its layers, for some first layers.

    Halves of the model, one that begins behind the first layer, and the last layer: between these
    first layers it is interpolated. A stage ends early where it would hold much more than a window.
    """
    limits = limits or WindowLimits()
    last, half = profile.num_layers - 1, profile.num_layers // 2
    wanted = {0: max(half - 1, 0), min(1, last): max(half, min(1, last)), half: last, last: last}
    stages = []
    for first, end in sorted(wanted.items()):
        held, stop = 0.0, first
        for index in range(first, end + 1):
            need = layer_bytes(profile, index, size, dtype)
            if limits.is_full(index - first, held, need):
                break
            held, stop = held + need, index
        stages.append((first, stop))
    return tuple(stages)


def _that_are_needed(windows: Sequence[Range], distinct: Sequence[int]) -> list[Range]:
    covered = set[int]()
    needed = []
    for first, last in windows:
        inside = set(distinct[first : last + 1])
        if inside - covered:
            covered |= inside
            needed.append((first, last))
    return needed


def layer_bytes(profile: ModelProfile, index: int, size: int, dtype: Dtype) -> float:
    """About what a layer holds in a window: parameters, gradients, optimizer, activations."""
    layer, element = profile.layers[index], BYTES_PER_ELEMENT[parameter_format(dtype)]
    scale = profile.activation_scale(dtype)
    kept = (layer.activation_bytes + layer.output_bytes) * scale * size * _IN_FLIGHT
    return layer.num_parameters * (2 * element + _OPTIMIZER_BYTES) + kept


def grouped(
    windows: Sequence[Range], bytes_of: Sequence[float], budget_bytes: float
) -> list[list[Range]]:
    """Windows that are in memory at once and take turns; a large one is alone in its group."""
    groups: list[list[Range]] = []
    held = 0.0
    for window, need in zip(windows, bytes_of, strict=True):
        if not groups or held + need > budget_bytes:
            groups.append([])
            held = 0.0
        groups[-1].append(window)
        held += need
    return groups


def free_bytes(device: str) -> float:
    """Free memory of the device; of a CPU, the host's."""
    if torch.device(device).type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
