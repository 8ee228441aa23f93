"""Seconds of every layer on every device type: measured where there is a measurement, a roofline elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_configs.device import DeviceType
from heterps_configs.job import Job
from heterps_configs.model_profile import Measurement, ModelProfile

Floats = NDArray[np.float64]

# Share of the peak that training kernels reach. Uncalibrated round numbers: an estimate says so.
COMPUTE_EFFICIENCY = 0.5
BANDWIDTH_EFFICIENCY = 0.7
# Host time to launch the kernels of one layer, forward; the backward pass launches about twice as many.
LAUNCH_S = 30e-6


@dataclass(frozen=True)
class LayerTimes:
    """(L, T) seconds of one micro-batch, and for each of the T types where they come from."""

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    sources: tuple[str, ...]


def layer_times(profile: ModelProfile, types: Sequence[DeviceType], job: Job) -> LayerTimes:
    """Seconds of one micro-batch of `job.micro_batch_size` samples for each layer and type.

    A measurement of the type itself wins; an emulated type multiplies its host's measurement by its
    slowdown; any other type gets the roofline estimate (Williams et al., Roofline, 2009).

    Returns:
        Arrays of shape (layers, types).
    """
    columns = [_column(profile, entry, job) for entry in types]
    forward, backward, optimizer = (np.stack([c[i] for c in columns], axis=1) for i in range(3))
    return LayerTimes(forward, backward, optimizer, tuple(c[3] for c in columns))


def _column(
    profile: ModelProfile, entry: DeviceType, job: Job
) -> tuple[Floats, Floats, Floats, str]:
    roofline = _roofline(profile, entry, job)
    found = _measured(profile, entry.name, job, roofline)
    if found is None and entry.emulation is not None:
        host = _measured(profile, entry.emulation.host_device_type, job, roofline)
        if host is not None:
            factor = entry.emulation.slowdown
            found = host[0] * factor, host[1] * factor, host[2] * factor, host[3]
    return found or (*roofline, "roofline estimate")


def _measured(
    profile: ModelProfile, device_type: str, job: Job, roofline: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats, Floats, str] | None:
    """Interpolates linearly between the measured micro-batch sizes; scales from the nearest outside."""
    entries = [
        entry
        for entry in profile.measurements
        if entry.device_type == device_type
        and entry.dtype == job.dtype
        and entry.tensor_parallel == 1
    ]
    if not entries:
        return None
    newest = {entry.micro_batch_size: entry for entry in entries}
    sizes = sorted(newest)
    forward, backward = (
        _at_micro_batch(
            sizes, np.array([getattr(newest[b], field) for b in sizes]), job.micro_batch_size
        )
        for field in ("forward_s", "backward_s")
    )
    last = newest[sizes[-1]]
    optimizer = np.array(last.optimizer_s) if last.optimizer_s else roofline[2]
    return forward, backward, optimizer, _source(newest.values())


def _at_micro_batch(sizes: list[int], seconds: Floats, wanted: int) -> Floats:
    """(L,) seconds at `wanted` samples from (sizes, L) seconds."""
    if wanted <= sizes[0]:
        return np.asarray(seconds[0] * (wanted / sizes[0]))
    if wanted >= sizes[-1]:
        return np.asarray(seconds[-1] * (wanted / sizes[-1]))
    return np.array([np.interp(wanted, sizes, column) for column in seconds.T])


def _source(entries: object) -> str:
    assert isinstance(entries, type({}.values()))
    return (
        "corrected"
        if any(e.source == "corrected" for e in entries if isinstance(e, Measurement))
        else "measured"
    )


def _roofline(profile: ModelProfile, entry: DeviceType, job: Job) -> tuple[Floats, Floats, Floats]:
    """The slower of arithmetic at the peak and memory traffic at the bandwidth, times stated efficiencies."""
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
    # The backward pass reads the weights and writes their gradients, and moves the activations twice.
    backward = np.maximum(
        backward_flops / flops_per_s, 2 * (traffic + dense * element) / bytes_per_s
    )
    has_work = forward_flops + traffic + dense > 0
    parameters = np.array([layer.num_parameters for layer in layers], float)
    optimizer_bytes = parameters * (
        job.state_bytes_per_parameter + job.optimizer_bytes_per_parameter
    )
    return (
        forward + LAUNCH_S * has_work,
        backward + 2 * LAUNCH_S * has_work,
        optimizer_bytes / bytes_per_s,
    )
