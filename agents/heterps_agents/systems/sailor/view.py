"""A problem in Sailor's words, and a plan of Sailor's on devices by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby, product

from heterps_agents.finishing.chains import Column
from heterps_agents.systems.sailor.cost import FLOAT_BYTES
from heterps_agents.systems.sailor.goal import SailorGoal
from heterps_configs.documents.cluster import Device, Link
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.sailor import (
    SailorCluster,
    SailorEnd,
    SailorLayerSizes,
    SailorLayerTimes,
    SailorLink,
    SailorLinks,
    SailorModel,
    SailorNodeType,
    SailorShape,
)
from heterps_configs.importers.sailor_runs import SailorPlan
from heterps_envs.links import devices_by_node
from heterps_envs.options import options_of
from heterps_envs.problem import Problem

# Zones are told apart by the names of types.
_ZONE = "the cluster"


@dataclass(frozen=True)
class View:
    """A problem in Sailor's words.

    Attributes:
        types: Devices of each type.
        degrees: Of each type, those of its groups.
    """

    problem: Problem
    types: Mapping[str, tuple[Device, ...]] = field(init=False)
    degrees: Mapping[str, tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", _types_of(self.problem))
        object.__setattr__(self, "degrees", _degrees_of(self.problem, self.types))

    def goal(self) -> SailorGoal:
        """Seconds; or dollars, under the floor."""
        job = self.problem.job
        if job.objective == "throughput":
            return SailorGoal()
        prices = {gpu: devices[0].price_usd_per_hour for gpu, devices in self.types.items()}
        floor = job.min_throughput_samples_per_s
        return SailorGoal("usd", prices, job.global_batch_size / floor if floor else math.inf)

    def model(self) -> SailorModel:
        """Times of groups of each size on each type; sizes of one device's part."""
        size, times, sizes = self.problem.job.micro_batch_size, {}, {}
        for gpu, degree in self._groups():
            own = self.problem.at_degree(degree)
            kind = own.class_of[self.types[gpu][0].name]
            spent = own.layer_times
            columns = (
                spent.forward_s[:, kind],
                spent.backward_s[:, kind],
                spent.optimizer_s[:, kind],
            )
            times[SailorShape(gpu, size, degree)] = tuple(
                SailorLayerTimes(*map(float, row)) for row in zip(*columns, strict=True)
            )
            sizes[degree] = _sizes(own)
        return SailorModel(self.problem.profile.name, times, sizes)

    def cluster(self) -> SailorCluster:
        """Of each type, devices that all of its nodes have groups of, and memory."""
        node_types = {}
        for gpu, devices in self.types.items():
            counts = [len(own) for own in devices_by_node(devices).values()]
            memory = self.problem.usable_bytes(devices[0].name)
            node_types[gpu] = SailorNodeType(math.gcd(*counts), memory)
        return SailorCluster(_ZONE, node_types)

    def links(self) -> SailorLinks:
        """The slowest link between any two devices of two types."""
        links = {}
        by_node = {gpu: devices_by_node(devices) for gpu, devices in self.types.items()}
        for one, two in product(self.types, repeat=2):
            between = self.problem.links.of_nodes(by_node[one], by_node[two])
            if not between or not all(link.is_there for link in between):
                continue
            slowest = _steady(min(between, key=lambda link: link.bandwidth_bytes_per_s))
            for here, there in product(self.degrees[one], self.degrees[two]):
                links[SailorEnd(one, here, _ZONE), SailorEnd(two, there, _ZONE)] = slowest
            links[SailorEnd(one, 1, _ZONE), SailorEnd(two, 1, _ZONE)] = slowest
        return SailorLinks(self.problem.cluster.name, links)

    def chain(self, plan: SailorPlan) -> tuple[Column, ...]:
        """The plan's stages on devices by name, the widest groups first."""
        free = {
            gpu: [[device.name for device in own] for own in devices_by_node(devices).values()]
            for gpu, devices in self.types.items()
        }
        taken: dict[tuple[int, int], list[str]] = {}
        for degree, index, replica in sorted(
            (-group.tensor_parallel, index, replica)
            for index, stage in enumerate(plan.stages)
            for replica, group in enumerate(stage.groups)
        ):
            gpu = plan.stages[index].groups[replica].gpu
            node = next((own for own in free[gpu] if len(own) >= -degree), None)
            if node is None:
                raise HeterpsError(f"no node of {gpu} has room for one more group of {-degree}")
            taken[index, replica] = [node.pop(0) for _ in range(-degree)]
        return tuple(
            Column(
                stage.first_layer,
                stage.end_layer - 1,
                tuple(name for r in range(len(stage.groups)) for name in taken[index, r]),
                degree=stage.groups[0].tensor_parallel,
            )
            for index, stage in enumerate(plan.stages)
        )

    def _groups(self) -> list[tuple[str, int]]:
        return [(gpu, degree) for gpu, degrees in self.degrees.items() for degree in degrees]


def _types_of(problem: Problem) -> dict[str, tuple[Device, ...]]:
    """Devices that only their names and nodes tell apart, by what tells them from others."""

    def key(device: Device) -> tuple[str, int, str, float]:
        return device.type.name, device.memory_bytes, device.region, device.price_usd_per_hour

    devices = sorted(problem.cluster.devices, key=key)
    found = {kind: tuple(own) for kind, own in groupby(devices, key)}
    names = [kind[0] for kind in found]
    return {
        kind[0] if names.count(kind[0]) == 1 else _described(*kind): own
        for kind, own in found.items()
    }


def _described(name: str, memory_bytes: int, region: str, usd_per_hour: float) -> str:
    return f"{name} of {memory_bytes} bytes in {region} at {usd_per_hour:g} USD"


def _degrees_of(
    problem: Problem, types: Mapping[str, tuple[Device, ...]]
) -> dict[str, tuple[int, ...]]:
    """Of each type, the degrees that each of its classes allows."""
    allowed = options_of(problem, Strategy(tensor_parallel=problem.strategy.tensor_parallel))
    found = {}
    for gpu, devices in types.items():
        kinds = {problem.class_of[device.name] for device in devices}
        own = [{o.degree for o in allowed if o.device_class == kind} for kind in kinds]
        found[gpu] = tuple(sorted(set.intersection(*own)))
    return found


def _sizes(own: Problem) -> tuple[SailorLayerSizes, ...]:
    """Of the layers as one device of a group has them; what crosses cuts stays whole."""
    tables, unit = own.tables, FLOAT_BYTES * own.job.micro_batch_size
    return tuple(
        SailorLayerSizes(round(parameters), round(output / unit), round(kept / unit))
        for parameters, output, kept in zip(
            own.parameters, tables.output_bytes, tables.activation_bytes, strict=True
        )
    )


def _steady(link: Link) -> SailorLink:
    """A link whose bandwidth does not depend on the message."""
    bandwidth = link.bandwidth_bytes_per_s
    return SailorLink((0.0, 0.0, bandwidth / 1e9), bandwidth, link.latency_s)
