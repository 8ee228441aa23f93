"""What is on offer: some types, nodes or devices are not, some regions alone, so many of a type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from heterps_configs.documents.cluster import Device
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem


@dataclass(frozen=True)
class Offer:
    """Which devices of a cluster may be used; by default all.

    Attributes:
        exclude: Names of device types, nodes or devices that may not.
        regions: Only devices of these; empty: of all.
        most: At most so many of a device type.
        usd_per_hour: All devices that are used may cost so much; None: no limit.
    """

    exclude: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    most: Mapping[str, int] = field(default_factory=dict)
    usd_per_hour: float | None = None

    def __post_init__(self) -> None:
        for name, number in self.most.items():
            if number < 0:
                raise HeterpsError(f"--max-devices {name}={number}: expected 0 or more")
        if self.usd_per_hour is not None and not self.usd_per_hour >= 0:
            raise HeterpsError(f"--budget-usd-per-hour {self.usd_per_hour}: expected 0 or more")


ALL = Offer()


def offers(problem: Problem, offer: Offer) -> list[Problem]:
    """The problem on what is on offer; several where a limit leaves open which devices of a type.

    Of a limited type whole nodes come first, those with most devices of it, and those of one region
    before others: a problem for each region that has such devices.

    Raises:
        UnknownNameError: The cluster has nothing of that name.
        HeterpsError: No device is left.
    """
    devices = problem.cluster.devices
    _check_names(devices, offer)
    gone = {
        device.name
        for device in devices
        if not {device.type.name, device.node, device.name}.isdisjoint(offer.exclude)
        or (offer.regions and device.region not in offer.regions)
    }
    left = [device for device in devices if device.name not in gone]
    limited = [device for device in left if device.type.name in offer.most]
    homes = dict.fromkeys(device.region for device in limited) or {"": None}
    beyond = {frozenset(_beyond(limited, offer.most, home)): None for home in homes}
    return [without_devices(problem, gone | names) for names in beyond]


def nodes_first(devices: Iterable[Device], home: str = "") -> list[Device]:
    """Devices by whole nodes, the fullest first; those of a region before all others."""
    by_node: dict[str, list[Device]] = {}
    for device in devices:
        by_node.setdefault(device.node, []).append(device)
    ranked = sorted(by_node.values(), key=lambda own: (own[0].region != home, -len(own)))
    return [device for own in ranked for device in own]


def _beyond(limited: list[Device], most: Mapping[str, int], home: str) -> list[str]:
    """Names of the devices of limited types that are more than the limit."""
    names = []
    for kind, number in most.items():
        own = nodes_first((each for each in limited if each.type.name == kind), home)
        names += [device.name for device in own[number:]]
    return names


def _check_names(devices: Iterable[Device], offer: Offer) -> None:
    devices = list(devices)
    types = {device.type.name for device in devices}
    regions = {device.region for device in devices}
    named = types.union(*({device.node, device.name} for device in devices))
    for name in offer.exclude:
        if name not in named:
            raise UnknownNameError("device type, node or device of --exclude", name, named)
    for name in offer.regions:
        if name not in regions:
            raise UnknownNameError("region", name, regions)
    for name in offer.most:
        if name not in types:
            raise UnknownNameError("device type of --max-devices", name, types)
