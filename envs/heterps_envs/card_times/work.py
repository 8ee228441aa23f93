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
from heterps_envs.card_times.families import layer_family

COLUMNS = ("products", "energy", "attention", "parameters", "traffic", "launch")
PRODUCTS, ENERGY, ATTENTION, PARAMETERS, TRAFFIC, LAUNCH = range(len(COLUMNS))
# FLOP/s for each watt, times nanometres: orders of magnitude, which fitted factors correct.
FLOPS_PER_WATT = {"half": 3e12, "tf32": 1.5e12, "float32": 0.8e12}
ENERGY_NORM, ENERGY_GROWTH, GROWTH_FLOPS = 4.0, 0.1, 1e12
KERNEL_LAUNCH_S = 1e-5
# Where nobody has counted them: of a transformer block, and of a layer of one or two operations.
BLOCK_KERNELS, FEW_KERNELS = 30, 3

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
    dense = np.array([layer.num_parameters - layer.sparse_parameters for layer in layers], float)
    traffic = np.array([layer.memory_traffic_bytes for layer in layers], float)
    kernels = np.array([_num_kernels(layer) for layer in layers], float)
    share = np.array([_attention_share(layer) for layer in layers])
    forward_flops = samples * np.array([layer.forward_flops for layer in layers], float)
    # A backward pass is two such passes, where all of it is computed.
    backward_flops = samples * np.array([layer.backward_flops for layer in layers], float) / 2
    has_work = forward_flops + traffic + dense > 0
    shared = (
        dense * job.weight_bytes_per_parameter / bandwidth,
        samples * activation_scale * traffic / bandwidth,
        KERNEL_LAUNCH_S * kernels * has_work,
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


def _num_kernels(layer: LayerProfile) -> int:
    if layer.num_kernels:
        return layer.num_kernels
    return BLOCK_KERNELS if layer_family(layer.kind) == "attention block" else FEW_KERNELS


def _attention_share(layer: LayerProfile) -> float:
    """Of the FLOPs of a layer, those of products of two activations."""
    flops = [
        2.0 * each.rows * each.inner * each.columns * each.count for each in layer.matrix_products
    ]
    own = [each.factors == "activations" for each in layer.matrix_products]
    return sum(f for f, is_own in zip(flops, own, strict=True) if is_own) / max(sum(flops), 1.0)


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
