"""What a layer asks of a card: six times, each of which a fitted factor multiplies.

products: FLOPs over the peak of their number format.
energy: FLOPs over what the board's power allows. A product takes energy, less on smaller
    transistors: over eleven cards from 16 to 4 nm, tensor cores reach about 3 TFLOP/s for each watt
    and nanometre where the power limit holds them back (T4, L4, H100 NVL), far below their peaks.
    Long passes are slowed more than short ones, which end before the limiter acts: a small power
    of the FLOPs.
attention: FLOPs of products of two activations over the peak: their factors are narrow.
parameters: bytes of parameters over the bandwidth: weights are read, gradients written and added.
traffic: bytes that the operations read and write over the bandwidth, as the trace counts them.
launch: a constant for each kernel.

The first two are limits of one rate; their p-norm counts. The others come on top.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from heterps_configs.documents.base import compute_format
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_envs.arrays import Floats
from heterps_envs.card_times.counted import counted

COLUMNS = ("products", "energy", "attention", "parameters", "traffic", "launch")
PRODUCTS, ENERGY, ATTENTION, PARAMETERS, TRAFFIC, LAUNCH = range(len(COLUMNS))
# FLOP/s for each watt, times nanometres: orders of magnitude, which fitted factors correct.
FLOPS_PER_WATT = {"half": 3e12, "tf32": 1.5e12, "float32": 0.8e12}
ENERGY_NORM, ENERGY_GROWTH, GROWTH_FLOPS = 4.0, 0.1, 1e12
KERNEL_LAUNCH_S = 1e-5

# Tensor cores with numbers of 16 bits or with float32, or ordinary units.
UnitKind = Literal["half", "tf32", "float32"]
# Whose offsets of a card count: tensor cores have one kind, whatever they are given.
OFFSET_KINDS: Mapping[UnitKind, Literal["half", "float32"]] = {
    "half": "half",
    "tf32": "half",
    "float32": "float32",
}


class CardWork(NamedTuple):
    """(L, 6) seconds of a forward pass and of half a backward pass; see `COLUMNS`.

    Attributes:
        units: What computes the products.
    """

    forward: Floats
    backward: Floats
    units: UnitKind


def card_work(
    layers: Sequence[LayerProfile], activation_scale: float, entry: DeviceType, job: Job
) -> CardWork:
    """The work of some layers for one micro-batch of `job.micro_batch_size` samples.

    Args:
        layers: Of a profile.
        activation_scale: Turns their bytes into those of the job.
        entry: A card with known power and transistors; without them only its peak limits it.
        job: Its numbers and micro-batch size.
    """
    units = _units(entry, job)
    samples, bandwidth = job.micro_batch_size, entry.memory_bandwidth_bytes_per_s
    found = counted(layers)
    dense, share = found.dense_parameters, found.attention_share
    forward_flops = samples * found.forward_flops
    # A backward pass is two such passes, where all of it is computed.
    backward_flops = samples * found.backward_flops / 2
    has_work = forward_flops + found.traffic_bytes + dense > 0
    shared = (
        dense * job.weight_bytes_per_parameter / bandwidth,
        samples * activation_scale * found.traffic_bytes / bandwidth,
        KERNEL_LAUNCH_S * found.kernels * has_work,
    )
    peak = entry.peak(job.dtype)
    forward, backward = (
        np.stack(
            [
                (1 - share) * flops / peak,
                _energy_s(flops, entry, units),
                share * flops / peak,
                *shared,
            ],
            axis=1,
        )
        for flops in (forward_flops, backward_flops)
    )
    return CardWork(forward, backward, units)


def _units(entry: DeviceType, job: Job) -> UnitKind:
    wanted = compute_format(job.dtype)
    if wanted == "float32" or wanted not in entry.peak_flops_per_s:
        return "float32"
    return "tf32" if wanted == "tf32" else "half"


def _energy_s(flops: Floats, entry: DeviceType, units: UnitKind) -> Floats:
    if entry.power_w is None or entry.process_nm is None:
        return np.zeros_like(flops)
    rate = FLOPS_PER_WATT[units] * entry.power_w / entry.process_nm
    # Of a layer without FLOPs: zero, whatever its power is.
    return np.asarray(flops / rate * (np.maximum(flops, 1.0) / GROWTH_FLOPS) ** ENERGY_GROWTH)


def pass_seconds(factors: Floats, columns: Floats) -> Floats:
    """(...,) seconds of a pass; factors and columns are (..., 6)."""
    terms = factors * columns
    limits = terms[..., PRODUCTS] ** ENERGY_NORM + terms[..., ENERGY] ** ENERGY_NORM
    return np.asarray(limits ** (1 / ENERGY_NORM) + terms[..., ATTENTION:].sum(axis=-1))
