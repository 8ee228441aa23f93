"""Problems: model profile + cluster + job, and the seconds and bytes of the cost model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from heterps_configs.documents.cluster import Cluster, Device, Link
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.layer_costs.groups import Group, profile_on_group, times_on_group
from heterps_envs.layer_costs.memory import LayerMemory, layer_memory
from heterps_envs.layer_costs.memory_rule import MemoryRule, memory_rule
from heterps_envs.layer_costs.seconds import LayerTimes, layer_times

# A coded placement has four bits for the class (see `heterps_envs.closed_form.formula`).
MAX_CLASSES = 16
# Equal devices on different nodes are told apart while there are no more classes than this: exact
# solving takes exponentially longer with each.
MAX_NODE_CLASSES = 8


@dataclass(frozen=True)
class DeviceClass:
    """Devices that a placement need not tell apart: same type, memory, price and node.

    A placement names classes; binding picks the devices. Nodes are kept apart because a link
    between nodes is slower than one inside; only where that makes more than `MAX_NODE_CLASSES`
    classes, devices of one region share a class, with the slowest link between any two of them.
    """

    name: str
    type: DeviceType
    devices: tuple[Device, ...]

    @property
    def count(self) -> int:
        """How many devices there are."""
        return len(self.devices)


@dataclass(frozen=True)
class CostTables:
    """Everything that the cost model reads: L layers, T device classes, one micro-batch.

    Attributes:
        num_micro_batches: M, micro-batches of one step.
        is_gpipe: All forwards before all backwards (every micro-batch is in flight).
        forward_s, backward_s: (L, T) seconds of one micro-batch.
        optimizer_s: (L, T) seconds of the optimizer step.
        state_bytes: (L,) weights, their copies under mixed precision, gradients, optimizer state;
            under GPipe less what is never there beside all activations.
        gradient_bytes: (L,) what a gradient all-reduce of the layer moves.
        activation_bytes: (L,) kept for the backward pass of one micro-batch, as planners count it
            (`heterps_envs.layer_costs.memory_rule`).
        output_bytes: (L,) crosses the cut behind the layer, one way, one micro-batch; last: 0.
        device_count: (T,) devices of each class.
        memory_bytes: (T,) of one device, less the reserve of that rule.
        price_usd_per_hour: (T,) of one device.
        latency_s: (T, T) of the slowest link between two devices of the classes.
        inverse_bandwidth_s_per_byte: (T, T) of the same links.
    """

    num_micro_batches: int
    is_gpipe: bool
    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    state_bytes: Floats
    gradient_bytes: Floats
    activation_bytes: Floats
    output_bytes: Floats
    device_count: Integers
    memory_bytes: Floats
    price_usd_per_hour: Floats
    latency_s: Floats
    inverse_bandwidth_s_per_byte: Floats

    @property
    def num_layers(self) -> int:
        """Number of layers, L."""
        return len(self.state_bytes)

    @property
    def num_classes(self) -> int:
        """Number of device classes, T."""
        return len(self.device_count)

    @cached_property
    def compute_s(self) -> Floats:
        """(L, T) forward plus backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class Problem:
    """What a planner answers with a plan.

    Attributes:
        training: Profiles of other models; their measurements calibrate estimated layer times too.
        splits_by_node: Equal devices on different nodes are classes of their own, as long as there
            are no more than `MAX_NODE_CLASSES`.
        degree: Devices of a tensor-parallel group: seconds and bytes are those of one of them.
        whole: The problem that `at_degree` was asked of; None: this one.
    """

    profile: ModelProfile
    cluster: Cluster
    job: Job
    model_reference: str = ""
    cluster_reference: str = ""
    training: tuple[ModelProfile, ...] = ()
    splits_by_node: bool = True
    degree: int = 1
    whole: Problem | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        """One line: a profile and a cluster have hundreds."""
        job = self.job
        return (
            f"Problem({self.profile.name} on {self.cluster.name}: "
            f"{self.profile.num_layers} layers, "
            f"{len(self.cluster.devices)} devices, batch {job.global_batch_size} in "
            f"{job.micro_batch_size}s, {job.dtype}, {job.schedule})"
        )

    def at_degree(self, degree: int) -> Problem:
        """The same cluster and job with layers as one device of a group of `degree` has them.

        Forward and backward seconds hold the sums over the group, on the slowest link inside a
        node of the class. Devices are counted as before, and what crosses cuts stays whole.
        """
        if degree == self.degree:
            return self
        whole = self.whole or self
        if degree == 1:
            return whole
        found = whole._at_degree.get(degree)
        if found is None:
            profile = profile_on_group(
                whole.profile, whole._group(degree), whole.job, whole.layer_times.estimator
            )
            found = replace(whole, profile=profile, degree=degree, whole=whole)
            whole._at_degree[degree] = found
        return found

    @cached_property
    def _at_degree(self) -> dict[int, Problem]:
        return {}

    def _group(self, degree: int) -> Group:
        types = tuple(entry.type for entry in self.classes)
        return Group(degree, types, self.links_inside_nodes)

    @cached_property
    def links_inside_nodes(self) -> tuple[Link, ...]:
        """For each class the slowest link inside one of its nodes."""
        nodes = {node.name: node for node in self.cluster.nodes}
        slowest = []
        for entry in self.classes:
            own = [nodes[name] for name in dict.fromkeys(device.node for device in entry.devices)]
            links = [link for node in own for link in (node.link, node.reverse_link) if link]
            slowest.append(
                Link(
                    latency_s=max(link.latency_s for link in links),
                    bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s for link in links),
                )
            )
        return tuple(slowest)

    @cached_property
    def classes(self) -> tuple[DeviceClass, ...]:
        """The cluster's device classes, in the order of the file.

        Raises:
            HeterpsError: There are more than `MAX_CLASSES`.
        """
        groups = self._groups(by_node=self.splits_by_node)
        if len(groups) > MAX_NODE_CLASSES:
            groups = self._groups(by_node=False)
        if len(groups) > MAX_CLASSES:
            raise HeterpsError(
                f"cluster {self.cluster.name!r} has {len(groups)} classes of devices (type, "
                f"memory, price and region); at most {MAX_CLASSES} are supported"
            )
        return tuple(
            DeviceClass(name, devices[0].type, tuple(devices))
            for name, devices in zip(_class_names(groups.values()), groups.values(), strict=True)
        )

    @cached_property
    def over_nodes(self) -> Problem | None:
        """The same with equal devices of all nodes in one class; None where they are already."""
        merged = replace(self, splits_by_node=False)
        return merged if len(merged.classes) < len(self.classes) else None

    @cached_property
    def tables_within_nodes(self) -> CostTables:
        """The tables with links inside nodes between the devices of a class.

        `tables` takes the slowest link between any two of them, which leads from node to node where
        a class has several.
        """
        tables = self.tables
        latency_s = tables.latency_s.copy()
        inverse_bandwidth = tables.inverse_bandwidth_s_per_byte.copy()
        for index, entry in enumerate(self.classes):
            nodes = {device.node: device for device in entry.devices}
            links = [
                self.link(device.name, nodes[device.node].name)
                for device in entry.devices
                if device.name != nodes[device.node].name
            ]
            if links:
                latency_s[index, index] = max(link.latency_s for link in links)
                slowest = min(link.bandwidth_bytes_per_s for link in links)
                inverse_bandwidth[index, index] = 1 / slowest
        return replace(tables, latency_s=latency_s, inverse_bandwidth_s_per_byte=inverse_bandwidth)

    def _groups(self, by_node: bool) -> dict[tuple[object, ...], list[Device]]:
        """Devices by what makes them equal; single devices of many nodes stay together."""
        groups: dict[tuple[object, ...], list[Device]] = {}
        for device in self.cluster.devices:
            kind = (device.type.name, device.memory_bytes, device.price_usd_per_hour, device.region)
            groups.setdefault(kind, []).append(device)
        if not by_node:
            return groups
        parts: dict[tuple[object, ...], list[Device]] = {}
        for devices in groups.values():
            shares_nodes = len({device.node for device in devices}) < len(devices)
            for device in devices:
                node = device.node if shares_nodes else ""
                parts.setdefault((id(devices), node), []).append(device)
        return parts

    @cached_property
    def device_named(self) -> dict[str, Device]:
        """The cluster's devices by name."""
        return {device.name: device for device in self.cluster.devices}

    @cached_property
    def class_of(self) -> dict[str, int]:
        """Index into `classes` for each device name."""
        return {
            device.name: index
            for index, entry in enumerate(self.classes)
            for device in entry.devices
        }

    def link(self, first: str, second: str) -> Link:
        """The link between two devices, by their names."""
        a, b = self.device_named[first], self.device_named[second]
        ends = self._ends(a, b)
        if ends not in self._links_by_ends:
            self._links_by_ends[ends] = self.cluster.link(a, b)
        return self._links_by_ends[ends]

    def _ends(self, a: Device, b: Device) -> tuple[str, str, bool]:
        """What decides which link leads from one device to another."""
        if a.node != b.node or a.node not in self._directed_nodes:
            return a.node, b.node, False
        return a.node, b.node, self._order[a.name] > self._order[b.name]

    @cached_property
    def _links_by_ends(self) -> dict[tuple[str, str, bool], Link]:
        return {}

    @cached_property
    def _directed_nodes(self) -> frozenset[str]:
        """Nodes whose devices have another link to those in front of them."""
        return frozenset(node.name for node in self.cluster.nodes if node.reverse_link is not None)

    @cached_property
    def _order(self) -> dict[str, int]:
        return {device.name: index for index, device in enumerate(self.cluster.devices)}

    @cached_property
    def layers_fingerprint(self) -> str:
        """`profile.layers_fingerprint()` of the whole layers, computed once."""
        return self.whole.layers_fingerprint if self.whole else self.profile.layers_fingerprint()

    @cached_property
    def layer_times(self) -> LayerTimes:
        """(L, T) seconds for each layer and class, and where they come from."""
        if self.whole is not None:
            estimator = self.whole.layer_times.estimator
            return times_on_group(
                self.whole.profile, self.profile, self._group(self.degree), self.job, estimator
            )
        types = [entry.type for entry in self.classes]
        return layer_times(self.profile, types, self.job, self.training)

    def usable_bytes(self, device: str) -> int:
        """Memory of a device, less what a caching allocator loses to fragmentation."""
        entry = self.device_named[device]
        if entry.type.kind != "gpu" or entry.type.emulation is not None:
            return entry.memory_bytes
        return int(entry.memory_bytes * (1 - entry.type.fragmentation_share))

    @cached_property
    def layer_memory(self) -> LayerMemory:
        """What layers keep of one micro-batch, for each layer and class."""
        return layer_memory(self.profile, [entry.type for entry in self.classes], self.job)

    @cached_property
    def memory_rule(self) -> MemoryRule:
        """What planners count as memory."""
        counts = np.array([entry.count for entry in self.classes], dtype=np.int64)
        return memory_rule(self.layer_memory, self._gradient_bytes, self.job, counts)

    @cached_property
    def _gradient_bytes(self) -> Floats:
        parameters = np.array([layer.num_parameters for layer in self.profile.layers], dtype=float)
        return parameters * self.job.weight_bytes_per_parameter

    @cached_property
    def tables(self) -> CostTables:
        """The arrays of the cost model."""
        job, layers = self.job, self.profile.layers
        parameters = np.array([layer.num_parameters for layer in layers], dtype=float)
        scale = self.profile.activation_scale(job.dtype) * job.micro_batch_size
        output = np.array([layer.output_bytes for layer in layers]) * scale
        output[-1] = 0.0
        latency, inverse_bandwidth = self._links()
        counts = np.array([entry.count for entry in self.classes], dtype=np.int64)
        rule = self.memory_rule
        memory = np.array([self.usable_bytes(entry.devices[0].name) for entry in self.classes])
        return CostTables(
            num_micro_batches=job.num_micro_batches,
            is_gpipe=job.schedule == "gpipe",
            forward_s=self.layer_times.forward_s,
            backward_s=self.layer_times.backward_s,
            optimizer_s=self.layer_times.optimizer_s,
            state_bytes=parameters * job.state_bytes_per_parameter
            + np.array(self.profile.cast_bytes(job.dtype))
            - rule.apart_bytes,
            gradient_bytes=self._gradient_bytes,
            activation_bytes=rule.activation_bytes,
            output_bytes=output,
            device_count=counts,
            memory_bytes=np.maximum(memory - rule.reserve_bytes, 0.0),
            price_usd_per_hour=np.array(
                [entry.devices[0].price_usd_per_hour for entry in self.classes]
            ),
            latency_s=latency,
            inverse_bandwidth_s_per_byte=inverse_bandwidth,
        )

    def _links(self) -> tuple[Floats, Floats]:
        """The slowest link between any two different devices of each pair of classes."""
        size = len(self.classes)
        latency, inverse_bandwidth = np.zeros((size, size)), np.zeros((size, size))
        for i, first in enumerate(self.classes):
            for j, second in enumerate(self.classes):
                pairs = {
                    self._ends(a, b): (a.name, b.name)
                    for a in first.devices
                    for b in second.devices
                    if a.name != b.name
                }
                links = [self.link(*pair) for pair in pairs.values()]
                if links:
                    latency[i, j] = max(link.latency_s for link in links)
                    inverse_bandwidth[i, j] = max(1 / link.bandwidth_bytes_per_s for link in links)
        return latency, inverse_bandwidth


def _class_names(groups: Collection[Sequence[Device]]) -> list[str]:
    """The type's name, with the node and then the first device where that is not unique."""
    firsts = [devices[0] for devices in groups]
    types = [device.type.name for device in firsts]
    names = [
        name if types.count(name) == 1 else f"{name}@{device.node}"
        for name, device in zip(types, firsts, strict=True)
    ]
    return [
        name if names.count(name) == 1 else f"{name}/{device.name}"
        for name, device in zip(names, firsts, strict=True)
    ]
