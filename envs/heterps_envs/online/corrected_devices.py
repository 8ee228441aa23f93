"""A problem with other times for some of its devices: they get device types of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from heterps_configs.documents.cluster import Cluster, Device, DeviceGroup
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.model.measurement import Measurement
from heterps_envs.online.belief import Factors
from heterps_envs.problem import Problem


def corrected(base: Problem, factors: Mapping[tuple[str, ...], Factors]) -> Problem:
    """The problem with a corrected type for each set of devices, measured as factors say.

    Args:
        base: The problem that the factors are about.
        factors: By the names of the devices that share them; others stay as they are.
    """
    if not factors:
        return base
    new_types: dict[str, DeviceType] = {}
    added: dict[str, tuple[Measurement, ...]] = {}
    for names, own in factors.items():
        kind = _corrected_type(base.device_named[names[0]])
        new_types |= dict.fromkeys(names, kind)
        added[kind.name] = (
            _measured(base, names[0], kind.name, own),
            *_measured_groups(base, names[0], kind.name, own),
        )
    kept = [entry for entry in base.profile.measurements if entry.device_type not in added]
    profile = base.profile.changed(measurements=(*kept, *chain(*added.values())))
    return replace(base, profile=profile, cluster=_with_types(base.cluster, new_types))


def _measured(problem: Problem, device: str, type_name: str, factors: Factors) -> Measurement:
    """A measurement of the corrected type; bytes that were measured on the old one stay."""
    kind, times, job = problem.class_of[device], problem.layer_times, problem.job
    mean = float(
        (times.forward_s[:, kind] @ factors.forward + times.backward_s[:, kind] @ factors.backward)
        / problem.tables.compute_s[:, kind].sum()
    )
    weight_gradient = times.weight_gradient_s[:, kind] * factors.backward
    seconds = {
        "forward_s": times.forward_s[:, kind] * factors.forward,
        "backward_s": times.backward_s[:, kind] * factors.backward,
        "optimizer_s": times.optimizer_s[:, kind] * mean,
        "weight_gradient_s": weight_gradient,
        "stage_forward_s": times.stage_forward_s[:, kind] * factors.stage_forward,
        "stage_backward_s": times.stage_backward_s[:, kind] * factors.stage_backward,
        "cut_s": times.cut_s[:, kind] * factors.stage_forward,
    }
    values = {name: tuple(value.tolist()) for name, value in seconds.items()}
    origin = problem.device_named[device].type.name
    for entry in problem.profile.measurements:
        is_same = (entry.device_type, entry.micro_batch_size, entry.dtype) == (
            origin,
            job.micro_batch_size,
            job.dtype,
        )
        if is_same and entry.tensor_parallel == 1:
            names = {"device_type": type_name, "source": "corrected"}
            spreads = {"forward_spread_s": (), "backward_spread_s": ()}
            return entry.changed(**names, **spreads, **values)
    return Measurement.model_validate(
        {
            "device_type": type_name,
            "micro_batch_size": job.micro_batch_size,
            "dtype": job.dtype,
            "source": "corrected",
            **values,
        }
    )


def _measured_groups(
    problem: Problem, device: str, type_name: str, factors: Factors
) -> Iterator[Measurement]:
    """Measurements of groups of the corrected type, of each size that was measured of the old."""
    kind, job, origin = problem.class_of[device], problem.job, problem.device_named[device].type
    names = {origin.name, origin.emulation.host_device_type if origin.emulation else ""}
    degrees = {
        entry.tensor_parallel
        for entry in problem.profile.measurements
        if entry.device_type in names
        and (entry.micro_batch_size, entry.dtype) == (job.micro_batch_size, job.dtype)
    }
    for degree in sorted(degrees - {1}):
        times = problem.at_degree(degree).layer_times
        yield Measurement(
            device_type=type_name,
            tensor_parallel=degree,
            micro_batch_size=job.micro_batch_size,
            dtype=job.dtype,
            source="corrected",
            forward_s=tuple((times.forward_s[:, kind] * factors.forward).tolist()),
            backward_s=tuple((times.backward_s[:, kind] * factors.backward).tolist()),
            optimizer_s=tuple(times.optimizer_s[:, kind].tolist()),
        )


def _corrected_type(device: Device) -> DeviceType:
    """A type for a device, and for those that are as it is; an emulated one stays emulated."""
    name = device.type.name.split("~")[0] + "~" + device.name
    return device.type.changed(name=name)


def _with_types(cluster: Cluster, new_types: Mapping[str, DeviceType]) -> Cluster:
    """The cluster with every device named on its own, and the corrected ones on their new types."""
    nodes = tuple(
        node.changed(
            devices=tuple(
                _single(group, name, new_types)
                for group in node.devices
                for name in group.device_names()
            )
        )
        for node in cluster.nodes
    )
    added = {entry.name: entry for entry in new_types.values()}
    own = tuple(entry for entry in cluster.device_types if entry.name not in added)
    return cluster.changed(nodes=nodes, device_types=(*own, *added.values()))


def _single(group: DeviceGroup, name: str, new_types: Mapping[str, DeviceType]) -> DeviceGroup:
    own = new_types.get(name)
    return group.changed(name=name, count=1, type=own.name if own else group.type)
