"""Seconds of every layer on every device type: measured where possible, else a roofline.

The roofline's efficiencies are fitted on the device types that were measured, in the profile and in
profiles given beside it; without any they are stated constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.estimated import Estimator
from heterps_envs.layer_costs.intervals import MEASURED, ErrorInterval
from heterps_envs.layer_costs.samples import measurements_of

# Share of the backward pass that computes gradients of parameters, where it was not measured: for
# a matrix product both gradients cost the same.
WEIGHT_GRADIENT_SHARE = 0.5

# `scaled`: measured on one device, and scaled to what each device of a group computes.
LayerTimesSource = Literal[
    "measured",
    "corrected",
    "scaled",
    "calibrated roofline",
    "published measurements",
    "roofline estimate",
]
# Sources that need no interval: the times were taken on the type itself.
OWN_TIMES = ("measured", "corrected")


@dataclass(frozen=True)
class LayerTimes:
    """(L, T) seconds of one micro-batch, and for each of the T types where they come from.

    Attributes:
        weight_gradient_s: The part of `backward_s` that computes gradients of parameters.
        stage_forward_s: What a stage that begins with the layer takes beside its layers; 0 where
            nobody has measured it.
        stage_backward_s: The same for the backward pass.
        cut_s: What packing the tensors of the cut behind the layer takes; 0 where it is not known.
        sources: (T,) origin of each type's seconds.
        types: (T,) the device types.
        estimator: Estimated the types that were not measured.
    """

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    weight_gradient_s: Floats
    stage_forward_s: Floats
    stage_backward_s: Floats
    cut_s: Floats
    sources: tuple[LayerTimesSource, ...]
    types: tuple[DeviceType, ...]
    estimator: Estimator

    @cached_property
    def intervals(self) -> tuple[ErrorInterval, ...]:
        """(T,) factors on a type's seconds between which the truth lies; (1, 1) where measured.

        One factor holds for all layers of a type; see `heterps_envs.layer_costs.intervals`.
        """
        return tuple(
            MEASURED if source in OWN_TIMES else self.estimator.interval(entry)
            for entry, source in zip(self.types, self.sources, strict=True)
        )


def layer_times(
    profile: ModelProfile,
    types: Sequence[DeviceType],
    job: Job,
    training: Sequence[ModelProfile] = (),
    estimator: Estimator | None = None,
) -> LayerTimes:
    """Seconds of one micro-batch of `job.micro_batch_size` samples for each layer and type.

    A measurement of the type itself wins; an emulated type multiplies its host's measurement by its
    slowdown; any other type gets the roofline estimate (Williams et al., Roofline, 2009), with
    efficiencies fitted on the measured types of its kind (`heterps_envs.layer_costs.estimated`).
    The optimizer step may be missing from a measurement; it is then an estimate too.

    Args:
        profile: Layers and measurements.
        types: Device types whose seconds are wanted.
        job: Its dtype selects the measurements.
        training: Other profiles whose measurements calibrate types that `profile` cannot.
        estimator: What to estimate with; by default one that learns from `profile` and `training`.

    Returns:
        Arrays of shape (layers, types).
    """
    estimator = estimator or Estimator(profile, types, job, training)
    columns = [_column(profile, entry, job, estimator) for entry in types]
    return LayerTimes(
        forward_s=np.stack([column.forward_s for column in columns], axis=1),
        backward_s=np.stack([column.backward_s for column in columns], axis=1),
        optimizer_s=np.stack([column.optimizer_s for column in columns], axis=1),
        weight_gradient_s=np.stack([column.weight_gradient_s for column in columns], axis=1),
        stage_forward_s=np.stack([column.stage_forward_s for column in columns], axis=1),
        stage_backward_s=np.stack([column.stage_backward_s for column in columns], axis=1),
        cut_s=np.stack([column.cut_s for column in columns], axis=1),
        sources=tuple(column.source for column in columns),
        types=tuple(types),
        estimator=estimator,
    )


class _Column(NamedTuple):
    """(L,) seconds on one device type."""

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    weight_gradient_s: Floats
    stage_forward_s: Floats
    stage_backward_s: Floats
    cut_s: Floats
    source: LayerTimesSource


def _column(profile: ModelProfile, entry: DeviceType, job: Job, estimator: Estimator) -> _Column:
    measurements = measurements_of(profile, entry.name, job)
    factor = 1.0
    if not measurements and entry.emulation is not None:
        measurements = measurements_of(profile, entry.emulation.host_device_type, job)
        factor = entry.emulation.slowdown
    if not measurements:
        forward, backward, optimizer, source = estimator.seconds(entry, profile)
        weight_gradient = _weight_gradient_share(profile) * backward
        nothing = np.zeros(profile.num_layers)
        return _Column(
            forward, backward, optimizer, weight_gradient, nothing, nothing, nothing, source
        )
    forward, backward = (
        _at_micro_batch(
            list(measurements),
            np.array([getattr(found, field) for found in measurements.values()]),
            job.micro_batch_size,
        )
        for field in ("forward_s", "backward_s")
    )
    last = list(measurements.values())[-1]
    optimizer = (
        np.array(last.optimizer_s) * factor
        if last.optimizer_s
        else estimator.seconds(entry, profile).optimizer_s
    )
    corrected = any(found.source == "corrected" for found in measurements.values())
    return _Column(
        forward * factor,
        backward * factor,
        optimizer,
        _weight_gradient_s(profile, list(measurements.values()), job) * factor,
        _stage_s(profile, measurements, job, "stage_forward_s") * factor,
        _stage_s(profile, measurements, job, "stage_backward_s") * factor,
        _stage_s(profile, measurements, job, "cut_s") * factor,
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


def _stage_s(
    profile: ModelProfile,
    measurements: dict[int, Measurement],
    job: Job,
    field: Literal["stage_forward_s", "stage_backward_s", "cut_s"],
) -> Floats:
    """(L,) seconds that a stage takes beside its layers; 0 where it was not measured.

    Mostly host time: beyond the measured sizes it stays as it is.
    """
    found = {
        size: np.array(getattr(entry, field))
        for size, entry in measurements.items()
        if getattr(entry, field)
    }
    if not found:
        return np.zeros(profile.num_layers)
    sizes = list(found)
    inside = min(max(job.micro_batch_size, sizes[0]), sizes[-1])
    return _at_micro_batch(sizes, np.array(list(found.values())), inside)


def _weight_gradient_share(profile: ModelProfile) -> Floats:
    """(L,) share of a backward pass where it was not measured; layers without parameters: 0."""
    has_parameters = np.array([layer.trained_parameters > 0 for layer in profile.layers])
    return np.where(has_parameters, WEIGHT_GRADIENT_SHARE, 0.0)


def _at_micro_batch(sizes: list[int], seconds: Floats, wanted: int) -> Floats:
    """(L,) seconds at `wanted` samples from (sizes, L) seconds.

    Linear between the measured sizes; in proportion to the nearest one outside of them.
    """
    if wanted <= sizes[0]:
        return np.asarray(seconds[0] * (wanted / sizes[0]))
    if wanted >= sizes[-1]:
        return np.asarray(seconds[-1] * (wanted / sizes[-1]))
    return np.array([np.interp(wanted, sizes, column) for column in seconds.T])
