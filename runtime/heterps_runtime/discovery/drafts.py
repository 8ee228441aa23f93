"""A cluster file before it is text: its entries, each with where its numbers come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heterps_configs.documents.device import DeviceType
from heterps_runtime.discovery.link_kinds import NotedLink


@dataclass(frozen=True)
class TypeDraft:
    """A device type of the file's own.

    Attributes:
        like: The nearest type of the catalogue, which lends what is not known.
        memory_bytes: Usable; None: not known.
        host_bandwidth_bytes_per_s: To host memory; None: not known.
        why: What differs from `like`.
    """

    name: str
    card: str
    like: DeviceType
    memory_bytes: int | None
    host_bandwidth_bytes_per_s: float | None
    why: str


@dataclass(frozen=True)
class GroupDraft:
    """Equal devices.

    Attributes:
        memory_bytes: Where it is not that of the type.
        note: What they are.
    """

    name: str
    type: str
    count: int
    memory_bytes: int | None
    note: str


@dataclass(frozen=True)
class NodeDraft:
    """A host.

    Attributes:
        notes: What else it has.
        spare: A group that the file could have, too, and does not.
    """

    name: str
    groups: tuple[GroupDraft, ...]
    link: NotedLink | None
    notes: tuple[str, ...]
    spare: GroupDraft | None = None


@dataclass(frozen=True)
class ClusterDraft:
    """The file.

    Attributes:
        between: The link of nodes that `overrides` does not name.
        overrides: By the names of two nodes.
        remarks: What was assumed, and what a user should look at.
    """

    name: str
    description: str
    types: tuple[TypeDraft, ...]
    nodes: tuple[NodeDraft, ...]
    between: NotedLink | None
    overrides: Mapping[tuple[str, str], NotedLink]
    remarks: tuple[str, ...]
