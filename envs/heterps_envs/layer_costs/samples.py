"""Samples for the calibration: measured seconds of distinct layers, and the work that took them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats
from heterps_envs.card_times.families import layer_family
from heterps_envs.layer_costs.roofline import PassWork, layer_work, machine_balance, work_of_layers

# An error does not matter below this share of the mean layer of the pass, or below a microsecond.
NEGLIGIBLE_SHARE = 0.01
NEGLIGIBLE_S = 1e-6


class PassSamples(NamedTuple):
    """Measured seconds of one pass: (N,) distinct layers at all measured micro-batch sizes.

    `negligible_s` is added before two times are compared: errors below it do not matter.
    """

    work: PassWork
    seconds: Floats
    negligible_s: Floats

    def where(self, chosen: NDArray[np.bool_]) -> PassSamples:
        """The samples that a mask chooses."""
        work = PassWork(*(column[chosen] for column in self.work))
        return PassSamples(work, self.seconds[chosen], self.negligible_s[chosen])


@dataclass(frozen=True, eq=False)  # Equal means identical: arrays have no truth value.
class DeviceSamples:
    """What was measured on one device type.

    Attributes:
        balance: Logarithm of the type's peak FLOP/s over its bandwidth; see `machine_balance`.
        forward, backward: (N,) samples.
        families: (N,) family of each sample.
        counts: (N,) how many equal layers of the model it stands for.
        sizes: (N,) micro-batch size.
        optimizer_ratio: Measured over counted seconds of the optimizer step; None: not measured.
    """

    device_type: str
    balance: float
    forward: PassSamples
    backward: PassSamples
    families: NDArray[np.str_]
    counts: Floats
    sizes: Floats
    optimizer_ratio: float | None


def measurements_of(
    profile: ModelProfile, device_type: str, job: Job, only_measured: bool = False
) -> dict[int, Measurement]:
    """A type's measurements in the job's dtype by micro-batch size, in rising order.

    Of two for one size the later in the profile wins.

    Args:
        profile: Where they are.
        device_type: Its name.
        job: Its dtype.
        only_measured: Leave out times that a run has corrected.
    """
    found = {
        entry.micro_batch_size: entry
        for entry in profile.measurements
        if entry.device_type == device_type
        and entry.dtype == job.dtype
        and entry.tensor_parallel == 1
        and (entry.source == "measured" or not only_measured)
    }
    return dict(sorted(found.items()))


def device_samples(
    profile: ModelProfile, entry: DeviceType, job: Job, measurements: Sequence[Measurement]
) -> DeviceSamples:
    """The samples of one device type; of equal layers the median counts once.

    Args:
        profile: The layers that were measured.
        entry: Peaks of the device type.
        job: Its dtype is that of the measurements; its micro-batch size does not matter.
        measurements: Of that type, in the job's dtype, at least one.
    """
    groups = list(_equal_layers(profile.layers).values())
    layers = [profile.layers[members[0]] for members in groups]
    forward, backward, ratios = [], [], []
    for found in measurements:
        size = found.micro_batch_size  # which may be larger than all of the job's batch
        sized = job.changed(
            micro_batch_size=size, global_batch_size=size, unequal_micro_batch_sizes=None
        )
        work = work_of_layers(layers, profile.activation_scale(job.dtype), entry, sized)
        forward.append(_pass_samples(work.forward, found.forward_s, groups))
        backward.append(_pass_samples(work.backward, found.backward_s, groups))
        counted_s = float(layer_work(profile, entry, sized).optimizer_s.sum())
        if sum(found.optimizer_s) > 0 and counted_s > 0:
            ratios.append(sum(found.optimizer_s) / counted_s)
    return DeviceSamples(
        device_type=entry.name,
        balance=machine_balance(entry, job),
        forward=joined(forward),
        backward=joined(backward),
        families=np.array([layer_family(layer.kind) for layer in layers] * len(measurements)),
        counts=np.array([len(members) for members in groups] * len(measurements), float),
        sizes=np.repeat([float(found.micro_batch_size) for found in measurements], len(groups)),
        optimizer_ratio=float(np.median(ratios)) if ratios else None,
    )


def _equal_layers(layers: Sequence[LayerProfile]) -> dict[tuple[object, ...], list[int]]:
    """Indices of the layers by what their work and family depend on."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, layer in enumerate(layers):
        flops = (layer.forward_flops, layer.backward_flops)
        numbers = (layer.num_parameters, layer.sparse_parameters, layer.memory_traffic_bytes)
        groups.setdefault((layer.kind, *flops, *numbers), []).append(index)
    return groups


def _pass_samples(
    work: PassWork, seconds: Sequence[float], groups: Sequence[Sequence[int]]
) -> PassSamples:
    medians = [np.median([seconds[index] for index in members]) for members in groups]
    negligible_s = max(NEGLIGIBLE_SHARE * float(np.mean(seconds)), NEGLIGIBLE_S)
    return PassSamples(work, np.array(medians), np.full(len(groups), negligible_s))


def joined(parts: Sequence[PassSamples]) -> PassSamples:
    """All samples of several parts, in their order."""
    columns = zip(*(part.work for part in parts), strict=True)
    work = PassWork(*(np.concatenate(column) for column in columns))
    return PassSamples(
        work,
        np.concatenate([part.seconds for part in parts]),
        np.concatenate([part.negligible_s for part in parts]),
    )
