"""Problems: model profile + cluster + job, and the seconds and bytes of the cost model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.cluster import NO_LINK, Cluster, Device, Link
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.layer_costs.groups import Group, profile_on_group, times_on_group
from heterps_envs.layer_costs.host_link import Offload, offload
from heterps_envs.layer_costs.memory import LayerMemory, layer_memory
from heterps_envs.layer_costs.memory_rule import MemoryRule, memory_rule
from heterps_envs.layer_costs.seconds import LayerTimes, layer_times

# A coded placement has four bits for the class (see `heterps_envs.closed_form.formula`).
MAX_CLASSES = 16
# Equal devices on different nodes are told apart while there are no more classes than this: exact
# solving takes exponentially longer with each.
MAX_NODE_CLASSES = 8
# Whose equal devices are classes of their own: those of nodes that differ, of all nodes, of none.
NodesApart = Literal["unequal", "all", "none"]


@dataclass(frozen=True)
class DeviceClass:
    """Devices that a placement need not tell apart: same type, memory and price, on equal nodes.

    A placement names classes; binding picks the devices. Nodes that differ are kept apart because a
    link between nodes is slower than one inside; only where that makes more than
    `MAX_NODE_CLASSES` classes, devices of one region share a class. Where a class has several
    nodes, its tables have the slowest link between any two devices.
    """

    name: str
    type: DeviceType
    devices: tuple[Device, ...]

    @property
    def count(self) -> int:
        """How many devices there are."""
        return len(self.devices)


class RingLinks(NamedTuple):
    """The links that replicas of one stage sum their gradients over: those of one node, or not.

    Attributes:
        node_size: (O,) int64, the most replicas on one node.
        latency_s: (O, 2) inside a node, and between nodes.
        inverse_bandwidth_s_per_byte: (T, 2) of the same links.
    """

    node_size: Integers
    latency_s: Floats
    inverse_bandwidth_s_per_byte: Floats

    def of_classes(self, kept: list[int]) -> RingLinks:
        """Those of some classes only."""
        node_size, latency_s, inverse_bandwidth = self
        return RingLinks(node_size[kept], latency_s[kept], inverse_bandwidth[kept])


@dataclass(frozen=True)
class StageOptions:
    """Ways to carry out a stage: on a class, so many devices of it together, and what they hold.

    Bytes are those of one device.

    Attributes:
        class_of_option: (O,) the class of each.
        devices_of_option: (O,) devices of the class that one stage takes.
        state_bytes: (L, O) see `CostTables`, less `sharded_bytes`.
        sharded_bytes: (L, O) of the state, what the replicas of a stage share: divided by their
            number. So are the optimizer's seconds where any is.
        gradient_bytes: (L, O) what a gradient all-reduce of the layer moves.
        activation_bytes: (L, O) kept of one micro-batch.
    """

    class_of_option: Integers
    devices_of_option: Integers
    state_bytes: Floats
    sharded_bytes: Floats
    gradient_bytes: Floats
    activation_bytes: Floats

    @cached_property
    def shards_state(self) -> NDArray[np.bool_]:
        """(O,) whether the replicas of a stage share some of its state."""
        return np.asarray(self.sharded_bytes.any(axis=0))


@dataclass(frozen=True)
class CostTables:
    """Everything that the cost model reads: L layers, T device classes, O stage options.

    What chooses goes through the options, what counts devices through the classes. Unless `options`
    says more there is one option for each class, a stage on one device.

    Attributes:
        num_micro_batches: M, micro-batches of one step.
        is_gpipe: All forwards before all backwards (every micro-batch is in flight).
        forward_s, backward_s: (L, O) seconds of one micro-batch.
        optimizer_s: (L, O) seconds of the optimizer step.
        state_bytes: (L,) weights, their copies under mixed precision, gradients, optimizer state;
            under GPipe less what is never there beside all activations.
        gradient_bytes: (L,) what a gradient all-reduce of the layer moves.
        activation_bytes: (L,) kept for the backward pass of one micro-batch, as planners count it
            (`heterps_envs.layer_costs.memory_rule`).
        output_bytes: (L,) crosses the cut behind the layer, one way, one micro-batch; last: 0.
        device_count: (T,) devices of each class.
        memory_bytes: (O,) of one device, less the reserve of that rule.
        price_usd_per_hour: (O,) of the devices of one stage.
        latency_s: (O, O) of the slowest link between two devices of the classes.
        inverse_bandwidth_s_per_byte: (O, O) of the same links.
        rings: Links of gradient all-reduces; None: those between the devices of a class.
        options: What options hold, where there are more than one for each class; the bytes above
            are then those of a stage on one device.
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
    rings: RingLinks | None = None
    options: StageOptions | None = None

    @property
    def num_layers(self) -> int:
        """Number of layers, L."""
        return len(self.state_bytes)

    @property
    def num_classes(self) -> int:
        """Number of device classes, T."""
        return len(self.device_count)

    @property
    def num_options(self) -> int:
        """Number of stage options, O."""
        return len(self.memory_bytes)

    @cached_property
    def compute_s(self) -> Floats:
        """(L, O) forward plus backward."""
        return self.forward_s + self.backward_s

    @cached_property
    def stage_options(self) -> StageOptions:
        """`options`, or one for each class."""
        if self.options is not None:
            return self.options
        size = self.num_classes

        def for_all(values: Floats) -> Floats:
            return np.repeat(values[:, None], size, axis=1)

        return StageOptions(
            class_of_option=np.arange(size),
            devices_of_option=np.ones(size, np.int64),
            state_bytes=for_all(self.state_bytes),
            sharded_bytes=np.zeros((self.num_layers, size)),
            gradient_bytes=for_all(self.gradient_bytes),
            activation_bytes=for_all(self.activation_bytes),
        )

    @cached_property
    def most_replicas(self) -> Integers:
        """(O,) stages of an option that the devices of its class suffice for."""
        options = self.stage_options
        return self.device_count[options.class_of_option] // options.devices_of_option


# One device for each stage, which keeps all.
PLAIN = Strategy()


@dataclass(frozen=True)
class Problem:
    """What a planner answers with a plan.

    Attributes:
        training: Profiles of other models; their measurements calibrate estimated layer times too.
        nodes_apart: On which nodes equal devices are classes of their own, as long as there are no
            more than `MAX_NODE_CLASSES`.
        has_fastest_links: The tables have the fastest link between two devices of the classes, not
            the slowest.
        strategy: What planners may choose beside devices, cuts and replicas
            (`heterps_envs.options`).
        degree: Devices of a tensor-parallel group: seconds and bytes are those of one of them.
        share: Of what a group splits, the share of that device; None: all have the same.
        whole: The problem that `at_degree` was asked of; None: this one.
    """

    profile: ModelProfile
    cluster: Cluster
    job: Job
    model_reference: str = ""
    cluster_reference: str = ""
    training: tuple[ModelProfile, ...] = ()
    nodes_apart: NodesApart = "unequal"
    has_fastest_links: bool = False
    strategy: Strategy = PLAIN
    degree: int = 1
    share: float | None = None
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

    def at_degree(self, degree: int, share: float | None = None) -> Problem:
        """The same cluster and job with layers as one device of a group of `degree` has them.

        Forward and backward seconds hold the sums over the group, on the slowest link inside a
        node of the class. Devices are counted as before, and what crosses cuts stays whole.

        Args:
            degree: Devices of a group.
            share: Of what is split, the share of the device; by default an equal one.
        """
        if (degree, share) == (self.degree, self.share):
            return self
        whole = self.whole or self
        if degree == 1:
            return whole
        found = whole._at_degree.get((degree, share))
        if found is None:
            group = whole._group(degree, share)
            profile = profile_on_group(whole.profile, group, whole.job, whole.layer_times.estimator)
            found = replace(whole, profile=profile, degree=degree, share=share, whole=whole)
            whole._at_degree[degree, share] = found
        return found

    def for_stage(self, stage: Stage, rank: int | None = None) -> Problem:
        """The problem with layers as a device of a stage's group has them.

        Args:
            stage: The stage.
            rank: Which of its devices; by default the one with the largest share, which decides how
                long a pass takes.
        """
        shares = stage.uneven_shares
        if not shares:
            return self.at_degree(stage.degree)
        return self.at_degree(stage.degree, max(shares) if rank is None else shares[rank])

    @cached_property
    def _at_degree(self) -> dict[tuple[int, float | None], Problem]:
        return {}

    def _group(self, degree: int, share: float | None) -> Group:
        types = tuple(entry.type for entry in self.classes)
        return Group(degree, types, self.links_inside_nodes, share)

    @cached_property
    def links_inside_nodes(self) -> tuple[Link, ...]:
        """For each class the slowest link inside one of its nodes; none where one is missing."""
        nodes = {node.name: node for node in self.cluster.nodes}
        slowest = []
        for entry in self.classes:
            own = [nodes[name] for name in dict.fromkeys(device.node for device in entry.devices)]
            links = [link for node in own for link in (node.link, node.reverse_link) if link]
            if not links or not all(link.is_there for link in links):
                slowest.append(NO_LINK)
                continue
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
        groups = self._groups(self.nodes_apart)
        if len(groups) > MAX_NODE_CLASSES:
            groups = self._groups("none")
        if len(groups) > MAX_CLASSES:
            raise HeterpsError(
                f"cluster {self.cluster.name!r} has {len(groups)} classes of devices (type, "
                f"memory, price and region); at most {MAX_CLASSES} are supported"
            )
        return tuple(
            DeviceClass(name, devices[0].type, tuple(devices))
            for name, devices in zip(_class_names(groups.values()), groups.values(), strict=True)
        )

    def _viewed(
        self, nodes_apart: NodesApart | None = None, has_fastest_links: bool | None = None
    ) -> Problem:
        """The same, looked at in another way; so is the problem that a group's was asked of."""
        apart = nodes_apart or self.nodes_apart
        is_fastest = self.has_fastest_links if has_fastest_links is None else has_fastest_links
        whole = self.whole and self.whole._viewed(apart, is_fastest)
        return replace(self, nodes_apart=apart, has_fastest_links=is_fastest, whole=whole)

    @cached_property
    def plain(self) -> Problem:
        """The same where each stage is one device that keeps all."""
        return self if self.strategy.is_plain else replace(self, strategy=PLAIN)

    @cached_property
    def merges_nodes(self) -> bool:
        """Whether equal nodes share classes, so that their links differ inside and between."""
        if self.nodes_apart != "unequal":
            return False
        return self.has_equal_nodes and len(self._groups("unequal")) <= MAX_NODE_CLASSES

    @cached_property
    def has_equal_nodes(self) -> bool:
        """Whether equal devices stand on nodes that equal each other."""
        return len(self._groups("unequal")) < len(self._groups("all"))

    @cached_property
    def by_node(self) -> Problem:
        """The same with a class for each node of equal ones, where these are few; else itself."""
        apart = self._viewed(nodes_apart="all")
        return apart if self.merges_nodes and len(apart.classes) > len(self.classes) else self

    @cached_property
    def over_nodes(self) -> Problem | None:
        """The same with equal devices of all nodes in one class; None where they are already."""
        merged = self._viewed(nodes_apart="none")
        return merged if len(merged.classes) < len(self.classes) else None

    @cached_property
    def views(self) -> tuple[Problem, ...]:
        """The same problem as planners look at it, one after the other.

        Where equal nodes share classes, no single number is right for a link inside a class: it
        depends on the devices that binding picks. So planners answer with a class for each node,
        where these are few, with the slowest links, and with the fastest.
        """
        if not self.merges_nodes:
            return (self,)
        apart = () if self.by_node is self else (self.by_node,)
        return (*apart, self, self._viewed(has_fastest_links=True))

    @cached_property
    def bounding_tables(self) -> CostTables:
        """The tables that bounds are derived from: no choice of devices is faster than they say.

        Those of the problem itself, unless equal nodes share classes: then the fastest links, and
        what a device of either view has as memory.
        """
        if not self.merges_nodes:
            return self.tables
        memory_bytes, other = self.tables.memory_bytes.copy(), self.by_node
        for name, kind in self.class_of.items():
            memory_bytes[kind] = max(
                memory_bytes[kind], other.tables.memory_bytes[other.class_of[name]]
            )
        tables = self._viewed(has_fastest_links=True).tables
        return replace(tables, memory_bytes=memory_bytes)

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

    def _groups(self, apart: NodesApart) -> dict[tuple[object, ...], list[Device]]:
        """Devices by what makes them equal; single devices of many nodes stay together.

        Where some cannot send messages to each other, those of every node are apart.
        """
        groups: dict[tuple[object, ...], list[Device]] = {}
        for device in self.cluster.devices:
            kind = (device.type.name, device.memory_bytes, device.price_usd_per_hour, device.region)
            groups.setdefault(kind, []).append(device)
        if apart == "none":
            return groups
        parts: dict[tuple[object, ...], list[Device]] = {}
        for devices in groups.values():
            shares_nodes = len({device.node for device in devices}) < len(devices)
            shares_nodes |= self.cluster.lacks_links
            for device in devices:
                node = device.node if shares_nodes else ""
                if shares_nodes and apart == "unequal" and not self.cluster.lacks_links:
                    node = self._first_like[node]
                parts.setdefault((id(devices), node), []).append(device)
        return parts

    @cached_property
    def _first_like(self) -> dict[str, str]:
        """For each node the first one that equals it, in devices, links inside and host.

        A node with a link of its own to another one equals none.
        """
        named = {name for entry in self.cluster.link_overrides for name in entry.between}
        first: dict[str, str] = {}
        found: dict[str, str] = {}
        for node in self.cluster.nodes:
            groups = [
                (entry.type, entry.count, entry.memory_bytes, entry.price_usd_per_hour)
                for entry in node.devices
            ]
            kind = (node.region, groups, node.link, node.reverse_link, node.host)
            key = node.name if node.name in named else repr(kind)
            found[node.name] = first.setdefault(key, node.name)
        return found

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
                self.whole.profile,
                self.profile,
                self._group(self.degree, self.share),
                self.job,
                estimator,
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
    def offload(self) -> Offload:
        """What moving activations to host memory takes, for each layer and class."""
        return offload(self.layer_times, self.layer_memory, [c.type for c in self.classes])

    @cached_property
    def memory_rule(self) -> MemoryRule:
        """What planners count as memory."""
        counts = np.array([entry.count for entry in self.classes], dtype=np.int64)
        return memory_rule(self.layer_memory, self.gradient_bytes, self.job, counts)

    @cached_property
    def gradient_bytes(self) -> Floats:
        """(L,) of the layers' gradients."""
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
        has_rings = self.has_equal_nodes and self.nodes_apart != "all"
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
            gradient_bytes=self.gradient_bytes,
            activation_bytes=rule.activation_bytes,
            output_bytes=output,
            device_count=counts,
            memory_bytes=np.maximum(memory - rule.reserve_bytes, 0.0),
            price_usd_per_hour=np.array(
                [entry.devices[0].price_usd_per_hour for entry in self.classes]
            ),
            latency_s=latency,
            inverse_bandwidth_s_per_byte=inverse_bandwidth,
            rings=self._rings(latency, inverse_bandwidth) if has_rings else None,
        )

    def _rings(self, latency_s: Floats, inverse_bandwidth: Floats) -> RingLinks:
        """Inside nodes for as many replicas as a node has devices of the class."""
        size = len(self.classes)
        node_size = np.zeros(size, np.int64)
        ring_s = np.diagonal(latency_s)[:, None].repeat(2, axis=1)
        ring_inverse = np.diagonal(inverse_bandwidth)[:, None].repeat(2, axis=1)
        for index, entry in enumerate(self.classes):
            by_node: dict[str, list[Device]] = {}
            for device in entry.devices:
                by_node.setdefault(device.node, []).append(device)
            node_size[index] = max(map(len, by_node.values()))
            inside = self._different_links(
                pair for devices in by_node.values() for pair in permutations(devices, 2)
            )
            between = self._different_links(permutations((d[0] for d in by_node.values()), 2))
            for far, links in enumerate((inside, between)):
                if links:
                    ring_s[index, far] = min(link.latency_s for link in links)
                    ring_inverse[index, far] = min(1 / link.bandwidth_bytes_per_s for link in links)
        return RingLinks(node_size, ring_s, ring_inverse)

    def _links(self) -> tuple[Floats, Floats]:
        """The slowest link between any two different devices of each pair of classes."""
        size = len(self.classes)
        latency, inverse_bandwidth = np.zeros((size, size)), np.zeros((size, size))
        for i, first in enumerate(self.classes):
            for j, second in enumerate(self.classes):
                pairs = ((a, b) for a in first.devices for b in second.devices)
                links = self._different_links(pairs)
                if links:
                    choose = min if self.has_fastest_links else max
                    latency[i, j] = choose(link.latency_s for link in links)
                    inverse_bandwidth[i, j] = choose(
                        1 / link.bandwidth_bytes_per_s for link in links
                    )
        return latency, inverse_bandwidth

    def slowest_link(self, pairs: Iterable[tuple[str, str]]) -> tuple[float, float]:
        """The largest latency and the most seconds per byte between devices, by their names.

        Zeros without pairs of different devices.
        """
        named = self.device_named
        links = self._different_links((named[a], named[b]) for a, b in pairs)
        return (
            max((link.latency_s for link in links), default=0.0),
            max((1 / link.bandwidth_bytes_per_s for link in links), default=0.0),
        )

    def _different_links(self, pairs: Iterable[tuple[Device, Device]]) -> list[Link]:
        """The links between pairs of different devices, those with equal ends once."""
        ends = {self._ends(a, b): (a.name, b.name) for a, b in pairs if a.name != b.name}
        return [self.link(*pair) for pair in ends.values()]


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
