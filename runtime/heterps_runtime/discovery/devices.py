"""The devices of a host: its GPUs in their order, or processes of its processors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from heterps_configs.documents.cluster_problems import group_device_names
from heterps_configs.documents.device import DeviceType
from heterps_configs.units import bytes_text
from heterps_runtime.discovery.card_types import USABLE_SHARE, Match, match_card
from heterps_runtime.discovery.drafts import GroupDraft, TypeDraft
from heterps_runtime.discovery.gpus import Gpu
from heterps_runtime.discovery.host import Host
from heterps_runtime.discovery.link_kinds import pcie_bytes_per_s
from heterps_runtime.discovery.processors import Processors

# The type that `heterps profile --device cpu` files its times under: a process with one thread.
PROCESS_TYPE, SOCKET_TYPE = "host-cpu", "cpu-socket"
# What copies to and from pinned host memory reach of PCIe's nominal rate, as in the catalogue.
HOST_SHARE = 0.8


class DeviceNames:
    """Names for groups of devices, of which no two have a device of the same name."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unused(self, wanted: str, count: int) -> str:
        """The wanted name of a group; a letter or more is added where it is taken.

        Args:
            wanted: A name.
            count: Devices of the group.
        """
        for suffix in itertools.chain([""], _letters()):
            name = f"{wanted}{suffix}"
            own = {name, *group_device_names(name, count)}
            if not own & self._taken:
                self._taken |= own
                return name
        raise AssertionError("letters never end")


def _letters() -> itertools.chain[str]:
    lengths = itertools.count(1)
    return itertools.chain.from_iterable(
        (f"-{''.join(letters)}" for letters in itertools.product("bcdefghijkl", repeat=length))
        for length in lengths
    )


@dataclass(frozen=True)
class KnownCards:
    """What the cards of all hosts are.

    Attributes:
        types: Of the file's own, by card and memory.
        matches: The catalogue's rows, in the same way.
    """

    types: Mapping[tuple[str, int | None], TypeDraft]
    matches: Mapping[tuple[str, int | None], Match]

    def type_name(self, gpu: Gpu) -> str:
        """The device type of a card."""
        key = gpu.name, gpu.memory_bytes
        return self.types[key].name if key in self.types else self.matches[key].type.name


def known_cards(hosts: tuple[Host, ...], catalogue: Mapping[str, DeviceType]) -> KnownCards:
    """Matches each card; one without an exact match becomes a type of its own.

    Args:
        hosts: All of them.
        catalogue: Where types are looked for.
    """
    types: dict[tuple[str, int | None], TypeDraft] = {}
    matches: dict[tuple[str, int | None], Match] = {}
    for gpu in (gpu for host in hosts for gpu in host.gpus):
        key = gpu.name, gpu.memory_bytes
        if key not in matches:
            matches[key] = match_card(gpu.name, gpu.memory_bytes, catalogue)
            if not matches[key].is_exact:
                taken = {*catalogue, *(draft.name for draft in types.values())}
                types[key] = _own_type(gpu, matches[key], taken)
    return KnownCards(types, matches)


def _own_type(gpu: Gpu, match: Match, taken: set[str]) -> TypeDraft:
    words = re.sub("[^A-Za-z0-9]+", "-", gpu.name).strip("-") or "GPU"
    wanted = words.removeprefix("NVIDIA-") or words
    names = (wanted if index == 1 else f"{wanted}-{index}" for index in itertools.count(1))
    speed = None
    if gpu.pcie_generation is not None and gpu.pcie_lanes is not None:
        speed = HOST_SHARE * pcie_bytes_per_s(gpu.pcie_generation, gpu.pcie_lanes)
    return TypeDraft(
        name=next(name for name in names if name not in taken),
        card=gpu.name,
        like=match.type,
        memory_bytes=None if gpu.memory_bytes is None else int(USABLE_SHARE * gpu.memory_bytes),
        host_bandwidth_bytes_per_s=speed,
        why=match.why_not,
    )


def gpu_groups(host: Host, cards: KnownCards, names: DeviceNames, prefix: str) -> list[GroupDraft]:
    """Cards in the order of their indices, which runs count by; equal neighbours are one group.

    Args:
        host: With GPUs.
        cards: What they are.
        names: For devices of all hosts.
        prefix: Of names, so that hosts differ.
    """
    groups = []
    for (name, memory), same in itertools.groupby(
        host.gpus, key=lambda gpu: (gpu.name, gpu.memory_bytes)
    ):
        equal = list(same)
        less = _less_memory(equal[0], cards)
        type_name = cards.type_name(equal[0])
        short = re.sub("[^a-z0-9]+", "-", type_name.lower()).strip("-")
        groups.append(
            GroupDraft(
                name=names.unused(f"{prefix}{short}", len(equal)),
                type=type_name,
                count=len(equal),
                memory_bytes=less,
                note=f"{name}, {_reported(memory)}"
                + ("" if less is None else f": {USABLE_SHARE:g} of it, less than the type has"),
            )
        )
    return groups


def _reported(memory_bytes: int | None) -> str:
    return "memory not reported" if memory_bytes is None else f"{bytes_text(memory_bytes)} reported"


def _less_memory(gpu: Gpu, cards: KnownCards) -> int | None:
    """Where a card has less than its type: ECC takes some of ordinary memory."""
    key = gpu.name, gpu.memory_bytes
    nominal = cards.matches[key].type.memory_bytes
    if key in cards.types or gpu.memory_bytes is None or gpu.memory_bytes >= nominal:
        return None
    return int(USABLE_SHARE * gpu.memory_bytes)


def process_group(host: Host, names: DeviceNames, prefix: str) -> GroupDraft:
    """A process of one thread for each core that may be used, each with its share of the memory.

    Args:
        host: Without GPUs.
        names: For devices of all hosts.
        prefix: Of names, so that hosts differ.
    """
    processors = host.processors
    count = processors.num_processes
    return GroupDraft(
        name=names.unused(f"{prefix}process", count),
        type=PROCESS_TYPE,
        count=count,
        memory_bytes=max(1, processors.usable_bytes // count),
        note="a process of one thread for each usable core, with its share of the memory",
    )


def socket_group(host: Host, names: DeviceNames, prefix: str) -> GroupDraft:
    """The processors of a host with GPUs, should they compute, too."""
    processors = host.processors
    return GroupDraft(
        name=names.unused(f"{prefix}cpu", processors.sockets),
        type=SOCKET_TYPE,
        count=processors.sockets,
        memory_bytes=max(1, processors.usable_bytes // processors.sockets),
        note="the host's processors",
    )


def processors_text(processors: Processors) -> str:
    """One line: `AMD EPYC 7763, 2 sockets, 128 cores, 64 of them usable, 503 GiB`."""
    parts = [processors.model or "processor without a name"]
    parts.append(_counted(processors.sockets, "socket"))
    parts.append(_counted(processors.cores, "core"))
    if processors.usable_cores < processors.cores:
        parts.append(f"{processors.usable_cores} of them by affinity")
    if processors.quota_cores is not None and processors.quota_cores < processors.usable_cores:
        parts.append(f"time of {processors.quota_cores:g} by the control group")
    parts.append(f"{bytes_text(processors.memory_bytes)} (/proc/meminfo)")
    if processors.limit_bytes is not None:
        parts.append(f"{bytes_text(processors.limit_bytes)} of them by the control group")
    return ", ".join(parts)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
