"""Problems: model profile + cluster + job, and the seconds and bytes of the cost model."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from heterps_configs.documents.cluster import Cluster, Device, Link
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats
from heterps_envs.cost_tables import CostTables
from heterps_envs.device_classes import (
    MAX_CLASSES,
    MAX_NODE_CLASSES,
    DeviceClass,
    NodesApart,
    classes_of,
    first_like_nodes,
)
from heterps_envs.layer_costs.group_slice import (
    GroupSlice,
    Share,
    largest_slice,
    slice_of,
)
from heterps_envs.layer_costs.groups import (
    Group,
    profile_on_group,
    slowest_times,
    times_on_group,
)
from heterps_envs.layer_costs.host_link import Offload, offload
from heterps_envs.layer_costs.memory import LayerMemory, layer_memory
from heterps_envs.layer_costs.memory_rule import MemoryRule, memory_rule
from heterps_envs.layer_costs.sample_split import layers_by_batch
from heterps_envs.layer_costs.seconds import LayerTimes, layer_times
from heterps_envs.layer_costs.tensor_parallel import Splits, SplitUnits
from heterps_envs.links import Links, links_inside_nodes, measured_all_reduces

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
        members: Of a group of unlike devices, class and share of each: seconds are then, for all
            classes alike, those of the slowest device, layer by layer.
        whole: The problem that `at_degree` was asked of; None: this one.
        known_links: What follows from the cluster alone, see `links`; of another one: made anew.
        known_splits: The same of the profile: its layers at each degree.
        slower: The same with the slowest links: what layers take and hold is found there, once; of
            other layers, devices or jobs: none.
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
    share: Share = None
    members: tuple[tuple[int, GroupSlice | None], ...] = ()
    whole: Problem | None = field(default=None, repr=False, compare=False)
    known_links: Links | None = field(default=None, repr=False, compare=False)
    known_splits: Splits | None = field(default=None, repr=False, compare=False)
    slower: Problem | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Copies of a problem (`dataclasses.replace`) share what is known of both documents."""
        if self.known_links is None or self.known_links.cluster is not self.cluster:
            object.__setattr__(self, "known_links", Links(self.cluster))
        if self.known_splits is None or self.known_splits.profile is not self.profile:
            object.__setattr__(self, "known_splits", Splits(self.profile))
        if self.slower is not None and not self._has_layers_of(self.slower):
            object.__setattr__(self, "slower", None)

    def _has_layers_of(self, other: Problem) -> bool:
        """Whether all that layers take and hold is what it is in another problem."""
        fields = "profile", "cluster", "job", "training", "share", "members"
        own = self.nodes_apart, self.degree
        return own == (other.nodes_apart, other.degree) and all(
            getattr(self, name) is getattr(other, name) for name in fields
        )

    def __repr__(self) -> str:
        """One line: a profile and a cluster have hundreds."""
        job = self.job
        return (
            f"Problem({self.profile.name} on {self.cluster.name}: "
            f"{self.profile.num_layers} layers, "
            f"{len(self.cluster.devices)} devices, batch {job.global_batch_size} in "
            f"{job.micro_batch_size}s, {job.dtype}, {job.schedule})"
        )

    def at_degree(self, degree: int, share: Share = None) -> Problem:
        """The same cluster and job with layers as one device of a group of `degree` has them.

        Forward and backward seconds hold the sums over the group, on the slowest link inside a
        node of the class. Devices are counted as before, and what crosses cuts stays whole.

        Args:
            degree: Devices of a group.
            share: Of what is split, the share of the device; by default an equal one, of those
                that whole units allow the largest. A number alone is taken for every layer as it
                is, whatever its units.
        """
        if (degree, share) == (self.degree, self.share):
            return self
        whole = self.whole or self
        if degree == 1:
            return whole
        found = whole._at_degree.get((degree, share))
        if found is None:
            found = whole._split(degree, share)
            whole._at_degree[degree, share] = found
        return found

    def _split(self, degree: int, share: Share) -> Problem:
        slower = self.slower and self.slower.at_degree(degree, share)
        if slower is not None:
            profile, share = slower.profile, slower.share
        else:
            assert self.known_splits is not None, "set when the problem was made"
            group, estimator = self._group(degree, share), self.layer_times.estimator
            profile = profile_on_group(self.known_splits, group, self.job, estimator)
        return replace(self, profile=profile, degree=degree, share=share, whole=self, slower=slower)

    def for_stage(self, stage: Stage, rank: int | None = None) -> Problem:
        """The problem with layers as a device of a stage's group has them.

        Args:
            stage: The stage.
            rank: Which of its devices; by default the one with the largest share. That one decides
                how long a pass takes, or in a group of unlike devices the slowest at each layer.
        """
        whole = (self.whole or self).keeping(stage.whole_layers, stage.batch_layers)
        if rank is None and self.has_unlike_devices(stage):
            kinds = [self.class_of[name] for name in stage.devices]
            own = [whole._slice(stage, rank) for rank in range(stage.degree)]
            return whole._slowest(tuple(zip(kinds, own, strict=True)))
        return whole.at_degree(stage.degree, whole._slice(stage, rank))

    def keeping(self, whole_layers: Iterable[int], batch_layers: Iterable[int] = ()) -> Problem:
        """The problem of a model of which groups do not split some layers, or only their samples.

        What was measured of groups is left out, for it holds what those layers take when split.

        Args:
            whole_layers: That each device computes.
            batch_layers: Of one stage, that each device computes for its samples.
        """
        if whole_layers == () and batch_layers == ():
            return self
        layers, whole = self.profile.layers, self.whole or self
        kept = frozenset(own for own in whole_layers if layers[own].tensor_split is not None)
        by_batch = frozenset(batch_layers)
        if not kept and not by_batch:
            return self
        assert self is whole, "whole layers are kept before the others are split"
        if (kept, by_batch) not in self._keeping:
            gradient_bytes = self.tables.gradient_bytes
            own = layers_by_batch(self.profile, by_batch, gradient_bytes, self.job)
            own |= {index: layers[index].changed(tensor_split=None) for index in kept}
            profile = self.profile.changed(
                layers=tuple(own.get(index, layer) for index, layer in enumerate(layers)),
                measurements=tuple(e for e in self.profile.measurements if e.tensor_parallel == 1),
            )
            self._keeping[kept, by_batch] = replace(self, profile=profile)
        return self._keeping[kept, by_batch]

    @cached_property
    def _keeping(self) -> dict[tuple[frozenset[int], frozenset[int]], Problem]:
        return {}

    def _slice(self, stage: Stage, rank: int | None) -> GroupSlice | None:
        return slice_of(stage, rank, self.differs_by_rank(stage))

    def differs_by_rank(self, stage: Stage) -> bool:
        """Whether devices of a stage's group hold unlike parts of its layers."""
        kept = (self.whole or self).keeping(stage.whole_layers, stage.batch_layers)
        return bool(stage.uneven_shares) or kept._units.leave_rests(stage.degree)

    @cached_property
    def _units(self) -> SplitUnits:
        return SplitUnits.of(self.whole.profile if self.whole else self.profile)

    def has_unlike_devices(self, stage: Stage) -> bool:
        """Whether the devices of a stage's group are of several classes."""
        if stage.degree == 1:
            return False
        return len({self.class_of[name] for name in stage.devices}) > 1

    def by_rank(self, stage: Stage) -> list[tuple[str, Problem]]:
        """Devices of a stage's group that may hold most, with the problem as each has it.

        The first one stands for all where they are alike: it is seen with the largest share.
        """
        if not self.has_unlike_devices(stage):
            return [(stage.devices[0], self.for_stage(stage))]
        return [(name, self.for_stage(stage, rank)) for rank, name in enumerate(stage.devices)]

    def _slowest(self, members: tuple[tuple[int, GroupSlice | None], ...]) -> Problem:
        found = self._of_members.get(members)
        if found is None:
            (_, first), *_ = members
            most = self.at_degree(len(members), first and largest_slice(first.shares))
            found = replace(most, members=members)
            self._of_members[members] = found
        return found

    @cached_property
    def _of_members(self) -> dict[tuple[tuple[int, GroupSlice | None], ...], Problem]:
        return {}

    @cached_property
    def derived(self) -> dict[Hashable, object]:
        """What modules above find out once about this very problem, each by a key of its own."""
        return {}

    @cached_property
    def _at_degree(self) -> dict[tuple[int, Share], Problem]:
        return {}

    def _group(self, degree: int, share: Share) -> Group:
        types = tuple(entry.type for entry in self.classes)
        sums = measured_all_reduces(self.cluster, self.classes, degree)
        return Group(degree, types, self.links_inside_nodes, share, sums)

    @cached_property
    def links_inside_nodes(self) -> tuple[Link, ...]:
        """For each class the slowest link inside one of its nodes; none where one is missing."""
        return links_inside_nodes(self.cluster, self.classes)

    @cached_property
    def classes(self) -> tuple[DeviceClass, ...]:
        """The cluster's device classes, in the order of the file.

        Raises:
            HeterpsError: There are more than `MAX_CLASSES`.
        """
        groups = self.links.groups(self.nodes_apart)
        if len(groups) > MAX_NODE_CLASSES:
            groups = self.links.groups("none")
        if len(groups) > MAX_CLASSES:
            raise HeterpsError(
                f"cluster {self.cluster.name!r} has {len(groups)} classes of devices (type, "
                f"memory, price and region); at most {MAX_CLASSES} are supported"
            )
        return classes_of(groups)

    def _viewed(
        self, nodes_apart: NodesApart | None = None, has_fastest_links: bool | None = None
    ) -> Problem:
        """The same, looked at in another way; so is the problem that a group's was asked of."""
        assert not self.members, "they name classes, which depend on the view"
        apart = nodes_apart or self.nodes_apart
        is_fastest = self.has_fastest_links if has_fastest_links is None else has_fastest_links
        whole = self.whole and self.whole._viewed(apart, is_fastest)
        is_faster = is_fastest and not self.has_fastest_links and apart == self.nodes_apart
        return replace(
            self, nodes_apart=apart, has_fastest_links=is_fastest, whole=whole,
            slower=self if is_faster else None,
        )  # fmt: skip

    @cached_property
    def plain(self) -> Problem:
        """The same where each stage is one device that keeps all."""
        if self.strategy.is_plain:
            return self
        plain = PLAIN.changed(chooses_micro_batch=self.strategy.chooses_micro_batch)
        return replace(self, strategy=plain)

    @cached_property
    def merges_nodes(self) -> bool:
        """Whether equal nodes share classes, so that their links differ inside and between."""
        if self.nodes_apart != "unequal":
            return False
        return self.has_equal_nodes and len(self.links.groups("unequal")) <= MAX_NODE_CLASSES

    @cached_property
    def has_equal_nodes(self) -> bool:
        """Whether equal devices stand on nodes that equal each other."""
        return len(self.links.groups("unequal")) < len(self.links.groups("all"))

    @cached_property
    def equal_nodes(self) -> dict[str, str]:
        """For each node the first one that equals it; itself where its links have directions."""
        first = first_like_nodes(self.cluster)
        directed = {node.name for node in self.cluster.nodes if node.reverse_link is not None}
        return {name: name if name in directed else like for name, like in first.items()}

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
        for index, (entry, link) in enumerate(
            zip(self.classes, self.links_inside_nodes, strict=True)
        ):
            if len({device.node for device in entry.devices}) < entry.count:
                latency_s[index, index] = link.latency_s
                inverse_bandwidth[index, index] = 1 / link.bandwidth_bytes_per_s
        return replace(tables, latency_s=latency_s, inverse_bandwidth_s_per_byte=inverse_bandwidth)

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
        return self.links.between(self.device_named[first], self.device_named[second])

    @property
    def links(self) -> Links:
        """Between the devices of the cluster."""
        assert self.known_links is not None, "set when the problem was made"
        return self.known_links

    @cached_property
    def layers_fingerprint(self) -> str:
        """`profile.layers_fingerprint()` of the whole layers, computed once."""
        return self.whole.layers_fingerprint if self.whole else self.profile.layers_fingerprint()

    @cached_property
    def layer_times(self) -> LayerTimes:
        """(L, T) seconds for each layer and class, and where they come from."""
        if self.slower is not None:
            return self.slower.layer_times
        if self.whole is not None and self.members:
            whole, degree = self.whole, self.degree
            columns = [(whole.at_degree(degree, s).layer_times, kind) for kind, s in self.members]
            return slowest_times(columns[0][0], columns)
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
        if self.slower is not None:
            return self.slower.layer_memory
        return layer_memory(self.profile, [entry.type for entry in self.classes], self.job)

    @cached_property
    def offload(self) -> Offload:
        """What moving activations to host memory takes, for each layer and class."""
        return offload(self.layer_times, self.layer_memory, [c.type for c in self.classes])

    @cached_property
    def memory_rule(self) -> MemoryRule:
        """What planners count as memory."""
        if self.slower is not None:
            return self.slower.memory_rule
        counts = np.array([entry.count for entry in self.classes], dtype=np.int64)
        return memory_rule(self.layer_memory, self.gradient_bytes, self.job, counts)

    @cached_property
    def gradient_bytes(self) -> Floats:
        """(L,) of the layers' gradients."""
        return self.trained_parameters * self.job.weight_bytes_per_parameter

    @cached_property
    def parameters(self) -> Floats:
        """(L,) of the layers."""
        return np.array([layer.num_parameters for layer in self.profile.layers], dtype=float)

    @cached_property
    def trained_parameters(self) -> Floats:
        """(L,) of them, those that are not frozen."""
        return np.array([layer.trained_parameters for layer in self.profile.layers], dtype=float)

    @cached_property
    def tied_parameters(self) -> Floats:
        """(L,) of them, those that another layer has, too."""
        return np.array([layer.tied_parameters for layer in self.profile.layers], dtype=float)

    @cached_property
    def _cast_bytes(self) -> Floats:
        return np.array(self.profile.cast_bytes(self.job.dtype))

    def state_bytes(self, rule: MemoryRule) -> Floats:
        """(L,) of weights, their copies, gradients and optimizer state, as a rule counts them."""
        frozen = self.parameters - self.trained_parameters
        held = self.trained_parameters * self.job.state_bytes_per_parameter
        held = held + frozen * self.job.weight_bytes_per_parameter
        return np.asarray(held + self._cast_bytes - rule.apart_bytes)

    @cached_property
    def tables(self) -> CostTables:
        """The arrays of the cost model."""
        job, layers = self.job, self.profile.layers
        scale = self.profile.activation_scale(job.dtype) * job.micro_batch_size
        output = np.array([layer.output_bytes for layer in layers]) * scale
        output[-1] = 0.0
        latency, inverse_bandwidth = self.links.of_classes(
            self.classes, self.nodes_apart, is_fastest=self.has_fastest_links
        )
        counts = np.array([entry.count for entry in self.classes], dtype=np.int64)
        rule = self.memory_rule
        memory = np.array([self.usable_bytes(entry.devices[0].name) for entry in self.classes])
        rings = None
        if self.has_equal_nodes and self.nodes_apart != "all":
            rings = self.links.rings(
                self.classes, self.nodes_apart, is_fastest=self.has_fastest_links
            )
        return CostTables(
            num_micro_batches=job.num_micro_batches,
            is_gpipe=job.schedule == "gpipe",
            forward_s=self.layer_times.forward_s,
            backward_s=self.layer_times.backward_s,
            optimizer_s=self.layer_times.optimizer_s,
            state_bytes=self.state_bytes(rule),
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
            rings=rings,
        )

    def slowest_link(self, pairs: Iterable[tuple[str, str]]) -> tuple[float, float]:
        """The largest latency and the most seconds per byte between devices, by their names.

        Zeros without pairs of different devices.
        """
        named = self.device_named
        links = self.links.different((named[a], named[b]) for a, b in pairs)
        return (
            max((link.latency_s for link in links), default=0.0),
            max((1 / link.bandwidth_bytes_per_s for link in links), default=0.0),
        )
