"""Peaks of layers within their backward passes, as measured, at the micro-batch size of a job.

A peak is the most that a layer holds within a pass beyond what it holds before. Its bytes grow with
the micro-batch or, where gradients of parameters come, fall with it: activations that go make up
for more of them. All are largest differences of what comes and what goes, so they are convex in the
micro-batch size, and a straight line between two sizes is not below them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.samples import measurements_of


@dataclass(frozen=True)
class BackwardPeaks:
    """L layers on T device classes, one full micro-batch; NaN where nobody has measured it.

    Attributes:
        first_backward: (L, T) see `Measurement.first_backward_bytes`.
        first_input, later_input, first_weight: (L, T) the same in the parts of a zero-bubble pass.
        early_gradient: (L, T) gradients that `backward-input` makes.
    """

    first_backward: Floats
    first_input: Floats
    later_input: Floats
    first_weight: Floats
    early_gradient: Floats


def backward_peaks(profile: ModelProfile, types: Sequence[DeviceType], job: Job) -> BackwardPeaks:
    """The bytes of one micro-batch of `job.micro_batch_size` samples.

    Where nobody has measured a layer without linear layers or convolutions, all of its gradients
    come early.
    """
    columns = [_column(profile, entry, job) for entry in types]
    return BackwardPeaks(*(np.stack(fields, axis=1) for fields in zip(*columns, strict=True)))


def _column(profile: ModelProfile, entry: DeviceType, job: Job) -> tuple[Floats, ...]:
    found = _measurements(profile, entry, job)
    gradients = job.weight_bytes_per_parameter * np.array(
        [layer.trained_parameters for layer in profile.layers], dtype=float
    )
    unknown = np.full(profile.num_layers, np.nan)
    if not found:
        puts_off = np.array([layer.deferred_bytes != 0 for layer in profile.layers])
        return unknown, unknown, unknown, unknown, np.where(puts_off, np.nan, gradients)
    size = job.micro_batch_size
    early = np.minimum(found[min(found)].early_gradient_bytes, gradients)
    later = _between(found, "later_input_bytes", np.zeros(profile.num_layers), size)
    most = _between(found, "later_input_bytes", np.zeros(profile.num_layers), max(found))
    beyond = later * max(size / max(found), 1.0)
    return (
        _between(found, "first_backward_bytes", gradients, size),
        _between(found, "first_input_bytes", early, size) + np.maximum(beyond - most, 0.0),
        beyond,
        _between(found, "first_weight_bytes", gradients - early, size),
        early,
    )


def _measurements(profile: ModelProfile, entry: DeviceType, job: Job) -> dict[int, Measurement]:
    """By micro-batch size: of the type itself, else of its host, where it is emulated."""
    for name in (entry.name, *([entry.emulation.host_device_type] if entry.emulation else ())):
        known = measurements_of(profile, name, job).items()
        found = {size: each for size, each in known if each.first_backward_bytes}
        if found:
            return found
    return {}


def _between(found: dict[int, Measurement], field: str, at_zero: Floats, wanted: int) -> Floats:
    """(L,) on straight lines from a micro-batch of nothing through the sizes; then constant."""
    sizes = sorted(found)
    values = np.array([at_zero, *(getattr(found[size], field) for size in sizes)])
    return np.array([np.interp(wanted, [0, *sizes], column) for column in values.T])
