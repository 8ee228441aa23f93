"""Random clusters: device classes and the links between them.

Half of them are drawn freely: accelerators up to twelve times apart, now and then a CPU with much
memory. The other half have devices of the shipped catalogue, with its peaks, bandwidths, memories
and prices, and some noise: one class of each type, or the same types again on other nodes; one
node, several, or two regions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.device import device_type_named
from heterps_envs.arrays import Floats
from heterps_envs.problem_sets.model_families import log_uniform, noise

LINK_BYTES_PER_S = (1.25e9, 3.1e9, 12.5e9, 25e9, 50e9)  # 10 GbE ... 400 Gb/s
INSIDE_BYTES_PER_S = (1.25e9, 12.5e9, 25e9, 64e9, 300e9)  # 10 GbE, PCIe 3/4/5, NVLink
NODE_BYTES_PER_S = INSIDE_BYTES_PER_S[1:]
# Free draws behind wide-area links only; catalogue clusters in two regions, on one node, with more
# nodes than types.
WIDE_AREA_SHARE, TWO_REGIONS_SHARE, ONE_NODE_SHARE, REPEATED_SHARE = 0.08, 0.15, 0.15, 0.3
FLOAT32_SHARE = 0.3
CPU_WEIGHT = 0.4
# Named, in this order: the draws of a seed stay what they are while the catalogue grows.
DRAWN_GPUS = (
    *("H100-80G", "A100-80G", "A100-40G", "V100-32G", "V100-16G", "P100", "T4", "L4", "A10G"),
    *("RTX-3090", "RTX-4090"),
)
DRAWN_CPU = "cpu-socket"


class DrawnCluster(NamedTuple):
    """T device classes.

    Attributes:
        type_index: (T,) classes with the same number are of one type, on different nodes.
        flops_per_s, bandwidth_bytes_per_s, memory_bytes, price_usd_per_hour: (T,) of one device.
        latency_s, inverse_bandwidth_s_per_byte: (T, T), the diagonal inside a class.
    """

    type_index: NDArray[np.int64]
    flops_per_s: Floats
    bandwidth_bytes_per_s: Floats
    memory_bytes: Floats
    price_usd_per_hour: Floats
    latency_s: Floats
    inverse_bandwidth_s_per_byte: Floats


def free_cluster(rng: np.random.Generator, num_classes: int) -> DrawnCluster:
    """Accelerators up to twelve times apart, and now and then a CPU with much memory."""
    slowest, spread = log_uniform(rng, 8e12, 1.5e14), log_uniform(rng, 1.2, 12)
    speed = slowest * np.exp(np.log(spread) * rng.random(num_classes))
    bandwidth = 4.5e11 * (speed / 8e12) ** 0.45 * noise(rng, 0.3, num_classes)
    memory = rng.choice([8.0, 16.0, 24.0, 32.0, 40.0, 80.0], num_classes) * 1e9
    price = 0.4 * (speed / 8e12) ** 0.65 * noise(rng, 0.3, num_classes)
    is_cpu = rng.random(num_classes) < 0.08
    speed, bandwidth = np.where(is_cpu, 3e12, speed), np.where(is_cpu, 2e11, bandwidth)
    memory, price = np.where(is_cpu, 256e9, memory), np.where(is_cpu, 1.0, price)
    between, latency_s = float(rng.choice(LINK_BYTES_PER_S)), log_uniform(rng, 5e-6, 2e-4)
    if rng.random() < WIDE_AREA_SHARE:
        between, latency_s = _wide_area(rng)
    links = between * noise(rng, 0.4, num_classes, num_classes)
    links = np.minimum(links, links.T)
    np.fill_diagonal(links, rng.choice(INSIDE_BYTES_PER_S, num_classes))
    latency = np.full((num_classes, num_classes), latency_s)
    np.fill_diagonal(latency, log_uniform(rng, 3e-6, 5e-5))
    types = np.arange(num_classes)
    return DrawnCluster(types, speed, bandwidth, memory, price, latency, 1 / links)


def catalogue_cluster(rng: np.random.Generator, num_classes: int) -> DrawnCluster:
    """Devices of the shipped catalogue; see above."""
    figures, is_cpu = _catalogue()
    weights = np.where(is_cpu, CPU_WEIGHT, 1.0)
    num_types = min(num_classes, len(figures))
    if rng.random() < REPEATED_SHARE:
        num_types = (num_types + 1) // 2
    rows = rng.choice(len(figures), num_types, replace=False, p=weights / weights.sum())
    again = rng.integers(0, num_types, num_classes - num_types)
    types = rng.permutation(np.concatenate([np.arange(num_types), again]))
    peak = figures[rows, 1 if rng.random() < FLOAT32_SHARE else 0] * noise(rng, 0.15, num_types)
    bandwidth = figures[rows, 2] * noise(rng, 0.1, num_types)
    # What other programs and the driver leave free.
    memory = figures[rows, 3] / np.maximum(noise(rng, 0.05, num_types), 1.0)
    price = figures[rows[types], 4] * noise(rng, 0.3, num_classes)
    latency, inverse_bandwidth = _catalogue_links(rng, num_classes)
    return DrawnCluster(
        types, peak[types], bandwidth[types], memory[types], price, latency, inverse_bandwidth
    )


def _catalogue_links(rng: np.random.Generator, num_classes: int) -> tuple[Floats, Floats]:
    """A node for each class (or one for all); one speed between nodes, another between regions."""
    size = (num_classes, num_classes)
    if rng.random() < ONE_NODE_SHARE:
        speed = np.full(size, float(rng.choice(NODE_BYTES_PER_S)))
        latency = np.full(size, log_uniform(rng, 3e-6, 5e-5))
    else:
        speed = np.full(size, float(rng.choice(LINK_BYTES_PER_S)))
        latency = np.full(size, log_uniform(rng, 1e-5, 2e-4))
        if rng.random() < TWO_REGIONS_SHARE:
            region = rng.random(num_classes) < 0.5
            across = region[:, None] != region
            wide, wide_s = _wide_area(rng)
            speed, latency = np.where(across, wide, speed), np.where(across, wide_s, latency)
        np.fill_diagonal(speed, rng.choice(INSIDE_BYTES_PER_S, num_classes))
        np.fill_diagonal(latency, log_uniform(rng, 3e-6, 5e-5))
    return latency, 1 / speed


def _wide_area(rng: np.random.Generator) -> tuple[float, float]:
    """Bytes per second, and seconds of latency."""
    return log_uniform(rng, 1e8, 1.25e9), log_uniform(rng, 2e-3, 4e-2)


@lru_cache(maxsize=1)
def _catalogue() -> tuple[Floats, NDArray[np.bool_]]:
    """Half-precision peak, float32 peak, bandwidth, memory, price of each; and which are CPUs."""
    types = [device_type_named(name) for name in (*DRAWN_GPUS, DRAWN_CPU)]
    figures = [
        (
            entry.peak("float16"),
            entry.peak("float32"),
            entry.memory_bandwidth_bytes_per_s,
            entry.memory_bytes,
            entry.price_usd_per_hour,
        )
        for entry in types
    ]
    return np.array(figures, dtype=float), np.array([entry.kind == "cpu" for entry in types])
