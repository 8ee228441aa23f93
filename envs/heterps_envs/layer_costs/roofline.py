"""Roofline: what a layer asks of a device, in seconds at the device's peaks, and how they combine.

A pass of a layer computes and moves bytes (Williams et al., Roofline, 2009). Both are counted from
the profile and divided by the peaks of the device type; efficiencies, stated or fitted, say how far
real kernels stay below the peaks. A fixed time for launching kernels comes on top: it is what makes
small micro-batches inefficient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats
from heterps_envs.card_times.counted import counted

# Share of the peak that training kernels reach. Uncalibrated round numbers: an estimate says so.
COMPUTE_EFFICIENCY = 0.5
BANDWIDTH_EFFICIENCY = 0.7
# Host time to launch the forward kernels of one layer; the backward pass launches twice as many.
LAUNCH_S = 30e-6


class PassWork(NamedTuple):
    """(L,) seconds of one pass of each layer, if the device reached its peaks.

    Attributes:
        compute_s: FLOPs over peak FLOP/s.
        memory_s: Bytes moved over peak bandwidth.
        launch_s: For launching kernels, as stated; 0 for a layer that does nothing.
    """

    compute_s: Floats
    memory_s: Floats
    launch_s: Floats


class LayerWork(NamedTuple):
    """What one micro-batch asks of one device type; `optimizer_s` is (L,) bytes over bandwidth."""

    forward: PassWork
    backward: PassWork
    optimizer_s: Floats


def layer_work(profile: ModelProfile, entry: DeviceType, job: Job) -> LayerWork:
    """The work of every layer for one micro-batch of `job.micro_batch_size` samples."""
    return work_of_layers(profile.layers, profile.activation_scale(job.dtype), entry, job)


def work_of_layers(
    layers: Sequence[LayerProfile], activation_scale: float, entry: DeviceType, job: Job
) -> LayerWork:
    """The work of some layers; `activation_scale` turns their bytes into those of the job."""
    samples, element = job.micro_batch_size, job.weight_bytes_per_parameter
    flops_per_s, bytes_per_s = entry.peak(job.dtype), entry.memory_bandwidth_bytes_per_s
    found = counted(layers)
    traffic = found.traffic_bytes * (activation_scale * samples)
    dense = found.dense_parameters
    forward_flops, backward_flops = found.forward_flops * samples, found.backward_flops * samples
    memory_s = (traffic + dense * element) / bytes_per_s
    launch_s = np.where(forward_flops + traffic + dense > 0, LAUNCH_S, 0.0)
    state_bytes = job.state_bytes_per_parameter + job.optimizer_bytes_per_parameter
    optimizer_bytes = found.trained_parameters * state_bytes
    return LayerWork(
        PassWork(forward_flops / flops_per_s, memory_s, launch_s),
        # The backward pass reads weights, writes their gradients, and moves activations twice.
        PassWork(backward_flops / flops_per_s, 2 * memory_s, 2 * launch_s),
        optimizer_bytes / bytes_per_s,
    )


def machine_balance(entry: DeviceType, job: Job) -> float:
    """Logarithm of peak FLOP/s over bandwidth: where its roofline bends, in FLOPs for each byte."""
    return math.log(entry.peak(job.dtype) / entry.memory_bandwidth_bytes_per_s)


def plain_roofline_s(work: PassWork) -> Floats:
    """(L,) seconds at the stated efficiencies: the slower of arithmetic and traffic, and launch."""
    slower = np.maximum(work.compute_s / COMPUTE_EFFICIENCY, work.memory_s / BANDWIDTH_EFFICIENCY)
    return slower + work.launch_s


def plain_optimizer_s(work: LayerWork) -> Floats:
    """(L,) seconds of the optimizer step at the stated bandwidth efficiency."""
    return work.optimizer_s / BANDWIDTH_EFFICIENCY
