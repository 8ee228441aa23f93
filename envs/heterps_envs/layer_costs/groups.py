"""Layers on one device of a tensor-parallel group: what was measured, and their seconds.

Times measured at the group's degree win. Where a type was measured alone, those times are scaled by
what the roofline says of the split layers over what it says of the whole ones, and so are the bytes
that were measured. Any other type gets the roofline of the split layers, with the efficiencies that
whole layers were fitted with. Where a group was not measured, its sums come on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.device import DeviceType, shipped_device_types
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.estimated import Estimator
from heterps_envs.layer_costs.group_slice import Share
from heterps_envs.layer_costs.seconds import LayerTimes, LayerTimesSource, layer_times
from heterps_envs.layer_costs.tensor_parallel import Splits, sum_seconds


class Group(NamedTuple):
    """How layers are split.

    Attributes:
        degree: Devices of a group.
        types: (T,) device types.
        links: (T,) the link between the devices of a group of each.
        share: Of what is split, the share of the device; None: all have the same.
        sums: (T,) an all-reduce over a group of each, where it was measured.
    """

    degree: int
    types: tuple[DeviceType, ...]
    links: tuple[Link, ...]
    share: Share = None
    sums: tuple[Link | None, ...] = ()


def profile_on_group(splits: Splits, group: Group, job: Job, estimator: Estimator) -> ModelProfile:
    """The layers that one device of a group has, with measurements as if they were of one device.

    Args:
        splits: Of the model.
        group: How it is split.
        job: Measurements in its dtype are kept.
        estimator: Of the whole layers.
    """
    whole, split = splits.profile, splits.at(group.degree, group.share)
    kept: list[Measurement] = []
    for name, entry in _known_types(group.types).items():
        own, alone = (
            [e for e in profile.measurements if e.device_type == name and e.dtype == job.dtype]
            for profile in (split, whole)
        )
        kept += own or [
            _scaled(each, whole, split, entry, job, estimator)
            for each in alone
            if each.tensor_parallel == 1
        ]
    return split.changed(measurements=kept) if kept or split.measurements else split


def times_on_group(
    whole: ModelProfile, split: ModelProfile, group: Group, job: Job, estimator: Estimator
) -> LayerTimes:
    """(L, T) seconds of one micro-batch on each device of a group.

    Args:
        whole: The model.
        split: Its layers on a group, from `profile_on_group`.
        group: How it is split.
        job: The job.
        estimator: Of the whole layers.
    """
    times = layer_times(split, group.types, job, estimator=estimator)
    is_own = np.array(
        [group.share is None and _is_measured(whole, e, group.degree, job) for e in group.types]
    )
    all_reduces = group.sums or (None,) * len(group.links)
    sums = [
        sum_seconds(whole, job, group.degree, link, measured)
        for link, measured in zip(group.links, all_reduces, strict=True)
    ]
    forward_s, backward_s = (np.stack(columns, axis=1) for columns in zip(*sums, strict=True))
    sources: list[LayerTimesSource] = [
        "scaled" if source in ("measured", "corrected") and not own else source
        for source, own in zip(times.sources, is_own.tolist(), strict=True)
    ]
    return replace(
        times,
        forward_s=times.forward_s + np.where(is_own, 0.0, forward_s),
        backward_s=times.backward_s + np.where(is_own, 0.0, backward_s),
        sources=tuple(sources),
    )


def slowest_times(base: LayerTimes, columns: Sequence[tuple[LayerTimes, int]]) -> LayerTimes:
    """(L, T) seconds of a group whose devices are unlike, in every column.

    Layer by layer those of the device that takes longest: at the sums of a layer all wait for it.

    Args:
        base: Says all but seconds.
        columns: For each device, times of its share, and its column there.
    """

    def slowest(field: str) -> Floats:
        found = np.max([getattr(times, field)[:, kind] for times, kind in columns], axis=0)
        return np.repeat(found[:, None], len(base.types), axis=1)

    return replace(
        base,
        forward_s=slowest("forward_s"),
        backward_s=slowest("backward_s"),
        optimizer_s=slowest("optimizer_s"),
        weight_gradient_s=slowest("weight_gradient_s"),
        stage_forward_s=slowest("stage_forward_s"),
        stage_backward_s=slowest("stage_backward_s"),
        cut_s=slowest("cut_s"),
    )


def _known_types(types: Sequence[DeviceType]) -> dict[str, DeviceType]:
    """Types whose measurements count, by name: those given, and the hosts of emulated ones."""
    known = {entry.name: entry for entry in types}
    for entry in types:
        if entry.emulation is not None:
            host = entry.emulation.host_device_type
            known.setdefault(host, shipped_device_types().get(host, entry))
    return known


def _is_measured(profile: ModelProfile, entry: DeviceType, degree: int, job: Job) -> bool:
    """Whether a type's times were measured on such a group, or its host's, as they are read."""
    found = [each for each in profile.measurements if each.dtype == job.dtype]
    names = [entry.name, *([entry.emulation.host_device_type] if entry.emulation else ())]
    for name in names:
        degrees = {each.tensor_parallel for each in found if each.device_type == name}
        if degrees & {1, degree}:
            return degree in degrees
    return False


def _scaled(
    alone: Measurement,
    whole: ModelProfile,
    split: ModelProfile,
    entry: DeviceType,
    job: Job,
    estimator: Estimator,
) -> Measurement:
    """A measurement of whole layers, as it would be of split ones without their sums.

    Peaks within backward passes are left out: then as much counts as there can be.
    """
    size = alone.micro_batch_size
    sized = job.changed(
        micro_batch_size=size, global_batch_size=size, unequal_micro_batch_sizes=None
    )
    before = estimator.seconds(entry, whole, sized)
    after = estimator.seconds(entry, split, sized)
    forward = _ratio(after.forward_s, before.forward_s)
    backward = _ratio(after.backward_s, before.backward_s)
    kept = _ratio(
        np.array([layer.activation_bytes for layer in split.layers], float),
        np.array([layer.activation_bytes for layer in whole.layers], float),
    )
    return alone.changed(
        forward_s=_times(alone.forward_s, forward),
        backward_s=_times(alone.backward_s, backward),
        optimizer_s=_times(alone.optimizer_s, _ratio(after.optimizer_s, before.optimizer_s)),
        forward_spread_s=(),
        backward_spread_s=(),
        weight_gradient_s=_times(alone.weight_gradient_s, backward),
        activation_bytes=_times(alone.activation_bytes, kept),
        peak_bytes=_times(alone.peak_bytes, kept),
        first_backward_bytes=(),
        first_input_bytes=(),
        later_input_bytes=(),
        first_weight_bytes=(),
        early_gradient_bytes=(),
    )


def _ratio(split: Floats, whole: Floats) -> Floats:
    """What is left of each layer; nothing of nothing is all of it."""
    return np.where(whole > 0, split / np.where(whole > 0, whole, 1.0), 1.0)


def _times(values: Sequence[float], factors: Floats) -> tuple[float, ...]:
    return tuple((np.array(values) * factors).tolist()) if values else ()
