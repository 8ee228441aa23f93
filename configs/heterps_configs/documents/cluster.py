"""Clusters: named devices on nodes, and the links between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from heterps_configs.documents.base import Document
from heterps_configs.documents.cluster_problems import (
    MAX_GROUP_SIZE,
    cluster_problems,
    group_device_names,
)
from heterps_configs.documents.device import DeviceType, device_type_named
from heterps_configs.documents.job import Optimizer
from heterps_configs.documents.link_kinds import shipped_link_kinds, unknown_link_kind
from heterps_configs.documents.numbers import (
    MOST_BYTES_PER_S,
    MOST_LATENCY_S,
    BytesPerSecond,
    DeviceName,
    Factor,
    Latency,
    MemoryBytes,
    Name,
    Seconds,
    UsdPerHour,
    Whole,
)
from heterps_configs.problems import InconsistentError


class Link(Document):
    """A link: a message of n bytes takes `latency_s + n / bandwidth_bytes_per_s`.

    In a file, `none` is written where there is no link, which becomes `NO_LINK`. The name of a
    shipped kind (`heterps list links`) becomes its numbers.
    """

    latency_s: Latency
    bandwidth_bytes_per_s: BytesPerSecond

    @model_validator(mode="wrap")
    @classmethod
    def _may_be_named(cls, data: Any, handler: ModelWrapValidatorHandler[Link]) -> Link:
        if data == NOTHING:
            return NO_LINK
        if not isinstance(data, str):
            return handler(data)
        kind = shipped_link_kinds().get(data)
        if kind is None:
            raise ValueError(unknown_link_kind(data, NOTHING))
        return cls(latency_s=kind.latency_s, bandwidth_bytes_per_s=kind.bandwidth_bytes_per_s)

    @model_serializer(mode="wrap")
    def _says_none(self, handler: SerializerFunctionWrapHandler) -> Any:
        return handler(self) if self.is_there else NOTHING

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema for editors: the fields, `none`, or a kind."""
        found = handler.resolve_ref_schema(handler(schema))
        fields = dict(found)
        found.clear()
        found.update({"anyOf": [fields, {"enum": [NOTHING, *shipped_link_kinds()]}]})
        return found

    @property
    def is_there(self) -> bool:
        """False of `NO_LINK`."""
        return self.latency_s <= MOST_LATENCY_S

    def transfer_s(self, num_bytes: float) -> float:
        """Seconds for one message of `num_bytes`."""
        return self.latency_s + num_bytes / self.bandwidth_bytes_per_s


# What a group of devices does together. `grouped`: by a broadcast, or a reduce, for each device,
# instead of parts that are filled up to the largest one.
CollectiveKind = Literal[
    "all-reduce",
    "all-gather",
    "grouped all-gather",
    "reduce-scatter",
    "grouped reduce-scatter",
    "all-to-all",
]

NOTHING = "none"
# A number rather than infinity, with which costs of placements would become undefined; whatever
# sends a message here takes longer than anything is planned for.
NO_LINK = Link.model_construct(latency_s=1e10, bandwidth_bytes_per_s=MOST_BYTES_PER_S)


class Collective(Document):
    """What some devices of a node take together: `latency_s + n / bandwidth_bytes_per_s`.

    The n bytes are those of the tensor. Of an all-gather and a reduce-scatter, which fill parts up
    to the largest one, and of an all-to-all, they are the largest part times the devices.

    Attributes:
        devices: How many of them.
    """

    kind: CollectiveKind
    devices: Whole = Field(ge=2, le=MAX_GROUP_SIZE)
    latency_s: Latency
    bandwidth_bytes_per_s: BytesPerSecond

    @property
    def link(self) -> Link:
        """The same as a link."""
        return Link(latency_s=self.latency_s, bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)


class DeviceGroup(Document):
    """Equal devices on one node.

    Attributes:
        name: With `count` 1 the device's name; otherwise the devices are `name-0`, `name-1`, ... It
            has no `->` and no comma.
        type: A device type of the cluster file or of the shipped catalogue.
        memory_bytes: Overrides the type's memory (a limit, or a bigger card).
        price_usd_per_hour: Overrides the type's price (a spot price, say).
    """

    name: DeviceName
    type: Name
    count: Whole = Field(default=1, ge=1, le=MAX_GROUP_SIZE)
    memory_bytes: MemoryBytes | None = None
    price_usd_per_hour: UsdPerHour | None = None

    def device_names(self) -> list[str]:
        """The names of the group's devices, in order."""
        return group_device_names(self.name, self.count)


class HostTimes(Document):
    """What the processes of a node cost beside their layers.

    Attributes:
        action_s: Host time of one forward or backward action, beside its messages.
        send_s: Host time of sending a message. A link's latency holds it and `receive_s`, so both
            are subtracted there: they keep processes busy.
        receive_s: Host time of receiving one.
        step_s: Host time of one step: start, data, loss, end.
        slowdown_together: How much slower each of k processes computes while k of them do, for
            k = 1, 2, ...; beyond the last value in proportion to k. Empty: they do not disturb
            each other.
        optimizer_slowdown_together: The same of optimizer steps while k processes are in theirs,
            by kind of optimizer; of a kind that is missing, as in files of earlier versions: as
            `slowdown_together`. Alone beside passes a step is disturbed as passes are.
    """

    action_s: Seconds = 0
    send_s: Seconds = 0
    receive_s: Seconds = 0
    step_s: Seconds = 0
    slowdown_together: tuple[Factor, ...] = ()
    optimizer_slowdown_together: Mapping[Optimizer, tuple[Factor, ...]] = {}


class Node(Document):
    """A host: its devices, the link between any two of them, and what its processes cost.

    Attributes:
        link: Between any two of its devices; `none` where they cannot talk to each other. A node
            with one device needs no link.
        reverse_link: From a device to one that stands before it in `devices`; by default the same.
        collectives: As measured, of each kind and number of devices once; without them, sums over
            some of its devices are taken to be rings on `link`.
    """

    name: Name
    region: Name = "local"
    devices: tuple[DeviceGroup, ...] = Field(min_length=1)
    link: Link | None = None
    reverse_link: Link | None = None
    host: HostTimes = HostTimes()
    collectives: tuple[Collective, ...] = ()

    @model_validator(mode="after")
    def _has_each_collective_once(self) -> Self:
        counts = Counter((entry.kind, entry.devices) for entry in self.collectives)
        twice = [f"{kind} of {devices}" for (kind, devices), n in counts.items() if n > 1]
        if twice:
            raise InconsistentError([f"collectives: {', '.join(twice)} stands there twice"])
        return self

    def measured(self, kind: CollectiveKind, devices: int) -> Link | None:
        """What so many of its devices take for a collective; None: nobody has measured it."""
        return next(
            (e.link for e in self.collectives if (e.kind, e.devices) == (kind, devices)), None
        )

    def link_between(self, first: str, second: str) -> Link:
        """The link from one of its devices to another, by their names."""
        assert self.link is not None, "a node with several devices has one"
        if self.reverse_link is None:
            return self.link
        names = [name for group in self.devices for name in group.device_names()]
        return self.reverse_link if names.index(first) > names.index(second) else self.link


class LinkOverride(Document):
    """A link between two named nodes that differs from the cluster's rule.

    Attributes:
        between: The nodes; `link` leads from the first to the second.
        reverse_link: From the second to the first; by default the same.
    """

    between: tuple[Name, Name]
    link: Link
    reverse_link: Link | None = None


@dataclass(frozen=True)
class Device:
    """One concrete device. Memory in bytes, price in US dollars per hour."""

    name: str
    type: DeviceType
    node: str
    region: str
    memory_bytes: int
    price_usd_per_hour: float


class Cluster(Document):
    """Devices and links.

    Attributes:
        device_types: Types that this file defines itself; they win over the shipped catalogue.
        inter_node_link: Link between devices on different nodes of one region; here, between
            regions and between named nodes, `none` where they cannot talk to each other.
        inter_region_link: Link between regions; by default the same as between nodes.
        link_overrides: Exceptions for named pairs of nodes.
    """

    model_config = ConfigDict(ignored_types=(cached_property,))

    name: Name
    description: str = ""
    device_types: tuple[DeviceType, ...] = ()
    nodes: tuple[Node, ...] = Field(min_length=1)
    inter_node_link: Link | None = None
    inter_region_link: Link | None = None
    link_overrides: tuple[LinkOverride, ...] = ()

    @classmethod
    def problems_between_fields(cls, data: Mapping[str, Any]) -> list[str]:
        """Names that stand twice or that nothing has, and links that are missing."""
        return list(cluster_problems(data))

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems = self.problems_between_fields(self.model_dump())
        if problems:
            raise InconsistentError(problems)
        return self

    def device_type(self, name: str) -> DeviceType:
        """The type called `name`: this file's own first, then the shipped catalogue's.

        Raises:
            UnknownNameError: With near names.
        """
        own = {entry.name: entry for entry in self.device_types}
        return own[name] if name in own else device_type_named(name, also_known=own)

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """All devices, in the order of the file."""
        return tuple(
            self._device(node, group, name)
            for node in self.nodes
            for group in node.devices
            for name in group.device_names()
        )

    def _device(self, node: Node, group: DeviceGroup, name: str) -> Device:
        entry = self.device_type(group.type)
        price = group.price_usd_per_hour
        return Device(
            name=name,
            type=entry,
            node=node.name,
            region=node.region,
            memory_bytes=group.memory_bytes or entry.memory_bytes,
            price_usd_per_hour=entry.price_usd_per_hour if price is None else price,
        )

    @cached_property
    def lacks_links(self) -> bool:
        """Whether some devices cannot send messages to each other."""
        own = [link for node in self.nodes for link in (node.link, node.reverse_link)]
        between = [
            link
            for override in self.link_overrides
            for link in (override.link, override.reverse_link)
        ]
        links = [*own, *between, self.inter_node_link, self.inter_region_link]
        return any(link is not None and not link.is_there for link in links)

    def link(self, first: Device, second: Device) -> Link:
        """The link from one device to another (same node, override, same region, regions)."""
        if first.node == second.node:
            node = next(node for node in self.nodes if node.name == first.node)
            return node.link_between(first.name, second.name)
        for override in self.link_overrides:
            if override.between == (first.node, second.node):
                return override.link
            if override.between == (second.node, first.node):
                return override.reverse_link or override.link
        assert self.inter_node_link is not None
        if first.region != second.region and self.inter_region_link is not None:
            return self.inter_region_link
        return self.inter_node_link
