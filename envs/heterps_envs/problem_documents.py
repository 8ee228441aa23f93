"""The documents of a problem, and how planners tell the devices of its cluster apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from heterps_configs.documents.cluster import Cluster, Device, Link
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_envs.class_links import slowest_inside
from heterps_envs.device_classes import (
    MAX_CLASSES,
    MAX_NODE_CLASSES,
    DeviceClass,
    NodesApart,
    classes_of,
    first_like_nodes,
)
from heterps_envs.links import Links, links_inside_nodes


@dataclass(frozen=True)
class ProblemDocuments:
    """Model profile, cluster and job; device classes and links follow from the cluster alone.

    Attributes:
        training: Profiles of other models; their measurements calibrate estimated layer times too.
        nodes_apart: On which nodes equal devices are classes of their own, as long as there are no
            more than `MAX_NODE_CLASSES`.
        has_fastest_links: The tables have the fastest link between two devices of the classes, not
            the slowest.
        known_links: See `links`; of another cluster: made anew.
    """

    profile: ModelProfile
    cluster: Cluster
    job: Job
    model_reference: str = ""
    cluster_reference: str = ""
    training: tuple[ModelProfile, ...] = ()
    nodes_apart: NodesApart = "unequal"
    has_fastest_links: bool = False
    known_links: Links | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        """Copies (`dataclasses.replace`) share what is known of the cluster."""
        if self.known_links is None or self.known_links.cluster is not self.cluster:
            object.__setattr__(self, "known_links", Links(self.cluster))

    def __getstate__(self) -> dict[str, Any]:
        """Its fields alone.

        What is known of them is found again where it is needed; here one thread may learn more of
        a problem while another one pickles it.
        """
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "known_links": None
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As after `__init__`."""
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def links(self) -> Links:
        """Between the devices of the cluster."""
        assert self.known_links is not None, "set when the problem was made"
        return self.known_links

    @cached_property
    def classes(self) -> tuple[DeviceClass, ...]:
        """The cluster's device classes, in the order of the file.

        Raises:
            HeterpsError: There are more than `MAX_CLASSES`.
        """
        groups = self.links.groups(self.nodes_apart)
        if len(groups) > MAX_NODE_CLASSES and self.nodes_apart != "each":
            groups = self.links.groups("none")
        if len(groups) > MAX_CLASSES:
            raise HeterpsError(
                f"cluster {self.cluster.name!r} has {len(groups)} classes of devices (type, "
                f"memory, price and region); at most {MAX_CLASSES} are supported"
            )
        return classes_of(groups)

    @cached_property
    def links_inside_nodes(self) -> tuple[Link, ...]:
        """For each class the slowest link inside one of its nodes; none where one is missing."""
        return links_inside_nodes(self.cluster, self.classes)

    @cached_property
    def class_of(self) -> dict[str, int]:
        """Index into `classes` for each device name."""
        return {
            device.name: index
            for index, entry in enumerate(self.classes)
            for device in entry.devices
        }

    @cached_property
    def device_named(self) -> dict[str, Device]:
        """The cluster's devices by name."""
        return {device.name: device for device in self.cluster.devices}

    def usable_bytes(self, device: str) -> int:
        """Memory of a device, less what a caching allocator loses to fragmentation."""
        entry = self.device_named[device]
        if entry.type.kind != "gpu" or entry.type.emulation is not None:
            return entry.memory_bytes
        return int(entry.memory_bytes * (1 - entry.type.fragmentation_share))

    def link(self, first: str, second: str) -> Link:
        """The link between two devices, by their names."""
        return self.links.between(self.device_named[first], self.device_named[second])

    def slowest_link(self, pairs: Iterable[tuple[str, str]]) -> tuple[float, float]:
        """The largest latency and the most seconds per byte between devices, by their names.

        Zeros without pairs of different devices.
        """
        index = self.links.index
        ends = [(index[a], index[b]) for a, b in pairs if a != b]
        if not ends:
            return 0.0, 0.0
        latency_s, bandwidth = self.links.by_node.between(*np.array(ends, np.int64).T)
        return float(latency_s.max()), float((1 / bandwidth).max())

    def slowest_link_inside(self, devices: Sequence[str]) -> tuple[float, float]:
        """The same from any of some devices to another one of them."""
        if len(devices) < 2:
            return 0.0, 0.0
        index = self.links.index
        own = np.array([index[name] for name in devices], np.int64)
        return slowest_inside(self.links.by_node, own)

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
