"""Problems: model profile + cluster + job, and the seconds and bytes of the cost model."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from heterps_configs.documents.job import Strategy
from heterps_envs.arrays import Floats
from heterps_envs.cost_tables import CostTables
from heterps_envs.device_classes import MAX_CLASSES, NodesApart
from heterps_envs.problem_layers import ProblemLayers

# One device for each stage, which keeps all.
PLAIN = Strategy()


@dataclass(frozen=True)
class Problem(ProblemLayers):
    """What a planner answers with a plan.

    The documents and device classes are those of `heterps_envs.problem_documents`, seconds and
    bytes of layers those of `heterps_envs.problem_layers`.

    Attributes:
        strategy: What planners may choose beside devices, cuts and replicas
            (`heterps_envs.options`).
    """

    strategy: Strategy = field(default=PLAIN, kw_only=True)

    def __repr__(self) -> str:
        """One line: a profile and a cluster have hundreds."""
        job = self.job
        return (
            f"Problem({self.profile.name} on {self.cluster.name}: "
            f"{self.profile.num_layers} layers, "
            f"{len(self.cluster.devices)} devices, batch {job.global_batch_size} in "
            f"{job.micro_batch_size}s, {job.dtype}, {job.schedule})"
        )

    @cached_property
    def derived(self) -> dict[Hashable, object]:
        """What modules above find out once about this very problem, each by a key of its own."""
        return {}

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
        rings = None
        if self.has_equal_nodes and self.nodes_apart not in ("all", "each"):
            rings = self.links.rings(
                self.classes, self.nodes_apart, is_fastest=self.has_fastest_links
            )
        return CostTables(
            num_micro_batches=job.num_micro_batches,
            is_gpipe=job.schedule == "gpipe",
            holds_by_rule=job.schedule not in ("gpipe", "1f1b"),
            forward_s=self.layer_times.forward_s,
            backward_s=self.layer_times.backward_s,
            optimizer_s=self.layer_times.optimizer_s,
            state_bytes=self.state_bytes(rule),
            gradient_bytes=self.gradient_bytes,
            activation_bytes=rule.activation_bytes,
            output_bytes=output,
            device_count=counts,
            memory_bytes=np.maximum(self.bytes_beside_reserve, 0.0),
            price_usd_per_hour=np.array(
                [entry.devices[0].price_usd_per_hour for entry in self.classes]
            ),
            latency_s=latency,
            inverse_bandwidth_s_per_byte=inverse_bandwidth,
            rings=rings,
        )

    @cached_property
    def bytes_beside_reserve(self) -> Floats:
        """(T,) of a device of each class, but for what a stage leaves free; below 0: it lacks."""
        memory = np.array([self.usable_bytes(entry.devices[0].name) for entry in self.classes])
        return np.asarray(memory - self.memory_rule.reserve_bytes)

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
    def plain(self) -> Problem:
        """The same where each stage is one device that keeps all."""
        if self.strategy.is_plain:
            return self
        plain = PLAIN.changed(chooses_micro_batch=self.strategy.chooses_micro_batch)
        return replace(self, strategy=plain)

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
    def by_node(self) -> Problem:
        """The same with a class for each node of equal ones, where these are few; else itself."""
        apart = self._viewed(nodes_apart="all")
        return apart if self.merges_nodes and len(apart.classes) > len(self.classes) else self

    @cached_property
    def by_each_node(self) -> Problem | None:
        """The same with classes of single nodes, so that all links are known; None for too many.

        No stage has replicas on several nodes, as these are devices of one class.
        """
        return self._viewed("each") if len(self.links.groups("each")) <= MAX_CLASSES else None

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
