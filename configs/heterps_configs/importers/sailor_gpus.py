"""Public figures of the GPUs that Sailor's files name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from heterps_configs.errors import UnknownNameError


class SailorGpu(NamedTuple):
    """Figures of NVIDIA's data sheets and architecture white papers.

    Attributes:
        float32_flops_per_s: Dense peak without tensor cores.
        memory_bandwidth_bytes_per_s: Peak.
        resident_threads: Multiprocessors times the threads that each can hold.
    """

    float32_flops_per_s: float
    memory_bandwidth_bytes_per_s: float
    resident_threads: int


# "RTX-2080" has 11 GiB in Sailor's cluster file: it is the RTX 2080 Ti.
SAILOR_GPUS: Mapping[str, SailorGpu] = {
    "GH-96": SailorGpu(67e12, 4.0e12, 132 * 2048),
    "A100-80": SailorGpu(19.5e12, 2.039e12, 108 * 2048),
    "A100-40": SailorGpu(19.5e12, 1.555e12, 108 * 2048),
    "V100-16": SailorGpu(15.7e12, 0.9e12, 80 * 2048),
    "RTX-3090": SailorGpu(35.6e12, 0.936e12, 82 * 1536),
    "Titan-RTX": SailorGpu(16.3e12, 0.672e12, 72 * 1024),
    "RTX-2080": SailorGpu(13.4e12, 0.616e12, 68 * 1024),
}


def sailor_gpu(name: str) -> SailorGpu:
    """The figures of a GPU.

    Raises:
        UnknownNameError: Sailor's files name no such GPU.
    """
    if name not in SAILOR_GPUS:
        raise UnknownNameError("GPU type", name, SAILOR_GPUS)
    return SAILOR_GPUS[name]
