"""Seconds of every layer on every device type: measured where possible, else a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.device import DeviceType
from heterps_configs.job import Job
from heterps_configs.model_profile import Measurement, ModelProfile

Floats = NDArray[np.float64]

# Share of the peak that training kernels reach. Uncalibrated round numbers: an estimate says so.
COMPUTE_EFFICIENCY = 0.5
BANDWIDTH_EFFICIENCY = 0.7
# Share of the backward pass that computes gradients of parameters, where it was not measured: for
# a matrix product both gradients cost the same.
WEIGHT_GRADIENT_SHARE = 0.5
# Host time to launch the forward kernels of one layer; the backward pass launches twice as many.
LAUNCH_S = 30e-6


@dataclass(frozen=True)
class LayerTimes:
    """(L, T) seconds of one micro-batch, and for each of the T types where they come from.

    `weight_gradient_s` is the part of `backward_s` that computes gradients of parameters.
    """

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    weight_gradient_s: Floats
    sources: tuple[str, ...]


def layer_times(profile: ModelProfile, types: Sequence[DeviceType], job: Job) -> LayerTimes:
    """Seconds of one micro-batch of `job.micro_batch_size` samples for each layer and type.

    A measurement of the type itself wins; an emulated type multiplies its host's measurement by its
    slowdown; any other type gets the roofline estimate (Williams et al., Roofline, 2009). The
    optimizer step may be missing from a measurement; it is then an estimate too.

    Returns:
        Arrays of shape (layers, types).
    """
    columns = [_column(profile, entry, job) for entry in types]
    return LayerTimes(
        forward_s=np.stack([column.forward_s for column in columns], axis=1),
        backward_s=np.stack([column.backward_s for column in columns], axis=1),
        optimizer_s=np.stack([column.optimizer_s for column in columns], axis=1),
        weight_gradient_s=np.stack([column.weight_gradient_s for column in columns], axis=1),
        sources=tuple(column.source for column in columns),
    )


class _Column(NamedTuple):
    """(L,) seconds on one device type."""

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    weight_gradient_s: Floats
    source: str


def _column(profile: ModelProfile, entry: DeviceType, job: Job) -> _Column:
    estimate = _roofline(profile, entry, job)
    measurements = _measurements(profile, entry.name, job)
    factor = 1.0
    if not measurements and entry.emulation is not None:
        measurements = _measurements(profile, entry.emulation.host_device_type, job)
        factor = entry.emulation.slowdown
    if not measurements:
        return estimate
    forward, backward = (
        _at_micro_batch(
            list(measurements),
            np.array([getattr(found, field) for found in measurements.values()]),
            job.micro_batch_size,
        )
        for field in ("forward_s", "backward_s")
    )
    last = list(measurements.values())[-1]
    optimizer = np.array(last.optimizer_s) * factor if last.optimizer_s else estimate.optimizer_s
    corrected = any(found.source == "corrected" for found in measurements.values())
    return _Column(
        forward * factor,
        backward * factor,
        optimizer,
        _weight_gradient_s(profile, list(measurements.values()), job) * factor,
        "corrected" if corrected else "measured",
    )


def _weight_gradient_s(profile: ModelProfile, found: list[Measurement], job: Job) -> Floats:
    """(L,) seconds of the backward pass for parameters' gradients: measured, else a share of it."""
    seconds = [
        np.minimum(entry.weight_gradient_s, entry.backward_s)
        if entry.weight_gradient_s
        else _weight_gradient_share(profile) * np.array(entry.backward_s)
        for entry in found
    ]
    sizes = [entry.micro_batch_size for entry in found]
    return _at_micro_batch(sizes, np.array(seconds), job.micro_batch_size)


def _weight_gradient_share(profile: ModelProfile) -> Floats:
    """(L,) share of a backward pass where it was not measured; layers without parameters: 0."""
    has_parameters = np.array([layer.num_parameters > 0 for layer in profile.layers])
    return np.where(has_parameters, WEIGHT_GRADIENT_SHARE, 0.0)


def _measurements(profile: ModelProfile, device_type: str, job: Job) -> dict[int, Measurement]:
    """By micro-batch size, in rising order; of two for one size the later in the profile wins."""
    found = {
        entry.micro_batch_size: entry
        for entry in profile.measurements
        if entry.device_type == device_type
        and entry.dtype == job.dtype
        and entry.tensor_parallel == 1
    }
    return dict(sorted(found.items()))


def _at_micro_batch(sizes: list[int], seconds: Floats, wanted: int) -> Floats:
    """(L,) seconds at `wanted` samples from (sizes, L) seconds.

    Linear between the measured sizes; in proportion to the nearest one outside of them.
    """
    if wanted <= sizes[0]:
        return np.asarray(seconds[0] * (wanted / sizes[0]))
    if wanted >= sizes[-1]:
        return np.asarray(seconds[-1] * (wanted / sizes[-1]))
    return np.array([np.interp(wanted, sizes, column) for column in seconds.T])


def _roofline(profile: ModelProfile, entry: DeviceType, job: Job) -> _Column:
    """The slower of arithmetic and memory traffic, each at its stated efficiency."""
    layers, samples = profile.layers, job.micro_batch_size
    flops_per_s = entry.peak(job.dtype) * COMPUTE_EFFICIENCY
    bytes_per_s = entry.memory_bandwidth_bytes_per_s * BANDWIDTH_EFFICIENCY
    element = job.weight_bytes_per_parameter
    traffic = np.array([layer.memory_traffic_bytes for layer in layers]) * (
        element / profile.bytes_per_element * samples
    )
    dense = np.array([layer.num_parameters - layer.sparse_parameters for layer in layers], float)
    forward_flops = np.array([layer.forward_flops for layer in layers]) * samples
    backward_flops = np.array([layer.backward_flops for layer in layers]) * samples
    forward = np.maximum(forward_flops / flops_per_s, (traffic + dense * element) / bytes_per_s)
    # The backward pass reads weights, writes their gradients, and moves activations twice.
    backward = np.maximum(
        backward_flops / flops_per_s, 2 * (traffic + dense * element) / bytes_per_s
    )
    has_work = forward_flops + traffic + dense > 0
    parameters = np.array([layer.num_parameters for layer in layers], float)
    optimizer_bytes = parameters * (
        job.state_bytes_per_parameter + job.optimizer_bytes_per_parameter
    )
    backward = backward + 2 * LAUNCH_S * has_work
    return _Column(
        forward + LAUNCH_S * has_work,
        backward,
        optimizer_bytes / bytes_per_s,
        _weight_gradient_share(profile) * backward,
        "roofline estimate",
    )
