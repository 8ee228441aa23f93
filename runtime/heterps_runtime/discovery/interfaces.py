"""Network interfaces of a host that lead to other hosts, the fastest of each kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from heterps_runtime.discovery.sections import plain, whole

NetworkKind = Literal["infiniband", "ethernet"]

_INTERFACE = re.compile(r"(\S{1,40}) type=([0-9]{1,5}) state=(\S*) speed=(-?[0-9]{0,9})")
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?) Gb/sec.*")
# Of these, whatever device they have, none leads to another host.
_VIRTUAL = re.compile(r"(lo|docker|veth|br-|virbr|tun|tap|ifb|dummy|wg|usb)")
_ETHERNET = 1
_MOST_MBIT_PER_S = 10_000_000


@dataclass(frozen=True)
class Interface:
    """One way out of a host.

    Attributes:
        gbit_per_s: Its line rate; None: not said, as virtual machines do not.
    """

    name: str
    kind: NetworkKind
    gbit_per_s: float | None


def interfaces_of(sections: Mapping[str, str]) -> tuple[Interface, ...]:
    """The fastest interface of each kind, InfiniBand first.

    Args:
        sections: What the script printed.
    """
    found = [
        *_infiniband(sections.get("infiniband", "")),
        *_ethernet(sections.get("interfaces", "")),
    ]
    fastest: dict[NetworkKind, Interface] = {}
    for entry in found:
        best = fastest.setdefault(entry.kind, entry)
        if (entry.gbit_per_s or 0) > (best.gbit_per_s or 0):
            fastest[entry.kind] = entry
    return tuple(fastest[kind] for kind in ("infiniband", "ethernet") if kind in fastest)


def _infiniband(text: str) -> Iterator[Interface]:
    """Active ports; those that carry Ethernet (RoCE) stand among the network interfaces, too."""
    for line in text.splitlines():
        name, layer, state, rate = [*line.split("|"), "", "", "", ""][:4]
        speed = _RATE.fullmatch(rate.strip())
        if layer == "InfiniBand" and state.endswith("ACTIVE") and speed and float(speed[1]):
            yield Interface(plain(name), "infiniband", float(speed[1]))


def _ethernet(text: str) -> Iterator[Interface]:
    for line in text.splitlines():
        match = _INTERFACE.fullmatch(line.strip())
        if match is None or int(match[2]) != _ETHERNET or _VIRTUAL.match(match[1]):
            continue
        if match[3] not in ("up", "unknown"):
            continue
        mbit_per_s = whole(match[4])
        known = mbit_per_s if mbit_per_s and mbit_per_s <= _MOST_MBIT_PER_S else None
        yield Interface(plain(match[1]), "ethernet", known and known / 1000)
