"""Correction: what a run measured becomes a new problem that predicts it.

A device that runs slower or faster than predicted gets a device type of its own, with layer times
corrected by what was seen. Layers that it ran take the factor of their stage; layers that it did
not run take the device's mean factor, shrunk towards 1, because part of what was seen belongs to
those layers and not to the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from heterps_configs.cluster import Cluster, Device, DeviceGroup
from heterps_configs.device import DeviceType
from heterps_configs.model_profile import Measurement
from heterps_envs.problem import Problem

Floats = NDArray[np.float64]

# Spread of the logarithm of speed between devices and between layers of one device. They only set
# how much of a measured factor is believed of layers that were not measured.
DEVICE_SPREAD, LAYER_SPREAD = 0.35, 0.15


@dataclass(frozen=True)
class StageMeasurement:
    """Median seconds of one full micro-batch on one device.

    Attributes:
        first_layer, last_layer: The stage's layers (inclusive).
    """

    device: str
    first_layer: int
    last_layer: int
    forward_s: float
    backward_s: float


def drift(problem: Problem, measurements: Iterable[StageMeasurement]) -> dict[str, float]:
    """Measured over predicted compute seconds of every measured device; 1 is as predicted."""
    measured: dict[str, float] = {}
    predicted: dict[str, float] = {}
    for entry in measurements:
        forward, backward = _predicted(problem, entry)
        measured[entry.device] = (
            measured.get(entry.device, 0.0) + entry.forward_s + entry.backward_s
        )
        predicted[entry.device] = predicted.get(entry.device, 0.0) + forward + backward
    return {name: measured[name] / predicted[name] for name in measured if predicted[name] > 0}


def correct(
    problem: Problem, measurements: Sequence[StageMeasurement], tolerance: float = 0.03
) -> Problem:
    """The problem as the measurements show it.

    Args:
        problem: What was believed before.
        measurements: From a run of a plan of that problem.
        tolerance: Devices whose drift is smaller stay as they are: equal devices stay equal.

    Returns:
        A problem on the same devices (by name), where drifted devices have their own type.
    """
    factors = drift(problem, measurements)
    drifted = {name for name, factor in factors.items() if abs(factor - 1) > tolerance}
    if not drifted:
        return problem
    devices = {device.name: device for device in problem.cluster.devices}
    entries = {
        name: _corrected(problem, devices[name], [m for m in measurements if m.device == name])
        for name in drifted
    }
    new_types = {name: _type_of_its_own(devices[name]) for name in drifted}
    replaced = {entry.name for entry in new_types.values()}
    kept = [m for m in problem.profile.measurements if m.device_type not in replaced]
    profile = problem.profile.model_copy(
        update={"measurements": (*kept, *(entries[name] for name in sorted(drifted)))}
    )
    cluster = _with_types(problem.cluster, new_types)
    return replace(problem, profile=profile, cluster=cluster)


def _predicted(problem: Problem, entry: StageMeasurement) -> tuple[float, float]:
    column = _class_index(problem, entry.device)
    layers = slice(entry.first_layer, entry.last_layer + 1)
    tables = problem.tables
    return float(tables.forward_s[layers, column].sum()), float(
        tables.backward_s[layers, column].sum()
    )


def _class_index(problem: Problem, device: str) -> int:
    return next(
        index
        for index, entry in enumerate(problem.classes)
        if any(member.name == device for member in entry.devices)
    )


def _corrected(
    problem: Problem, device: Device, measurements: Sequence[StageMeasurement]
) -> Measurement:
    column = _class_index(problem, device.name)
    tables = problem.tables
    forward = _scaled(tables.forward_s[:, column], measurements, "forward_s")
    backward = _scaled(tables.backward_s[:, column], measurements, "backward_s")
    before = tables.backward_s[:, column]
    factors = np.divide(backward, before, out=np.ones_like(before), where=before > 0)
    weight_gradient = problem.layer_times.weight_gradient_s[:, column] * factors
    mean = float((forward + backward).sum() / tables.compute_s[:, column].sum())
    return Measurement(
        device_type=_type_of_its_own(device).name,
        micro_batch_size=problem.job.micro_batch_size,
        dtype=problem.job.dtype,
        source="corrected",
        forward_s=tuple(forward.tolist()),
        backward_s=tuple(backward.tolist()),
        optimizer_s=tuple((tables.optimizer_s[:, column] * mean).tolist()),
        weight_gradient_s=tuple(weight_gradient.tolist()),
    )


def _scaled(seconds: Floats, measurements: Sequence[StageMeasurement], field: str) -> Floats:
    """(L,) corrected seconds of one direction."""
    logarithms = np.full(len(seconds), np.nan)
    for entry in measurements:
        layers = slice(entry.first_layer, entry.last_layer + 1)
        predicted = float(seconds[layers].sum())
        if predicted > 0 and getattr(entry, field) > 0:
            logarithms[layers] = math.log(getattr(entry, field) / predicted)
    seen = ~np.isnan(logarithms)
    if not seen.any():
        return seconds
    # Posterior mean of a device's factor when each of n layers shows it with a spread of its own.
    belief = DEVICE_SPREAD**2 / (DEVICE_SPREAD**2 + LAYER_SPREAD**2 / int(seen.sum()))
    elsewhere = belief * float(logarithms[seen].mean())
    return np.asarray(seconds * np.exp(np.where(seen, logarithms, elsewhere)))


def _type_of_its_own(device: Device) -> DeviceType:
    name = device.type.name.split("~")[0] + "~" + device.name
    return device.type.model_copy(update={"name": name, "emulation": None})


def _with_types(cluster: Cluster, new_types: dict[str, DeviceType]) -> Cluster:
    """The cluster with every device named on its own, and the drifted ones on their new types."""
    nodes = tuple(
        node.model_copy(
            update={
                "devices": tuple(
                    _single(group, name, new_types)
                    for group in node.devices
                    for name in group.device_names()
                )
            }
        )
        for node in cluster.nodes
    )
    added = {entry.name: entry for entry in new_types.values()}
    own = tuple(entry for entry in cluster.device_types if entry.name not in added)
    return Cluster.model_validate(
        {
            **{name: getattr(cluster, name) for name in type(cluster).model_fields},
            "nodes": nodes,
            "device_types": (*own, *added.values()),
        }
    )


def _single(group: DeviceGroup, name: str, new_types: dict[str, DeviceType]) -> DeviceGroup:
    own = new_types.get(name)
    return group.model_copy(
        update={"name": name, "count": 1, "type": own.name if own else group.type}
    )
