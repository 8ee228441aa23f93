"""Which losses of devices a run should be ready for, the likeliest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from math import prod
from typing import NamedTuple

from heterps_configs.documents.cluster import Device
from heterps_envs.problem import Problem

# Losses in an hour of a device that nobody knows more about: about one in two months.
LOSSES_PER_HOUR = 7e-4
# How much likelier spot devices are lost than others, at no price at all. A cheap one is spare
# capacity that its owner may want back; between none and the full discount, in proportion.
SPOT_FACTOR = 100.0
# A node is lost as a whole this many times as often as each of its devices.
NODE_SHARE = 0.3
# Losses within so many hours count as one: re-planning has no time in between.
TOGETHER_HOURS = 0.05


class Loss(NamedTuple):
    """Devices that may be lost together, and how often that is expected in an hour."""

    devices: frozenset[str]
    per_hour: float


def loss_rate(device: Device, rates: Mapping[str, float]) -> float:
    """Losses of a device in an hour: its own rate, that of its type, or a guess by its price.

    Args:
        device: With its price, which may be below that of its type.
        rates: Losses in an hour by names of devices or of types.
    """
    for name in (device.name, device.type.name):
        if name in rates:
            return rates[name]
    full = device.type.price_usd_per_hour
    discount = max(0.0, 1 - device.price_usd_per_hour / full) if full > 0 else 0.0
    return LOSSES_PER_HOUR * (1 + (SPOT_FACTOR - 1) * discount)


def likely_losses(
    problem: Problem, tolerated: int = 1, rates: Mapping[str, float] | None = None
) -> list[Loss]:
    """Every single device, every node, then all sets of up to a number of devices.

    Losses of all devices are left out. Within each of the three kinds the likeliest come first.

    Args:
        problem: With the devices that there are.
        tolerated: Devices that may be lost together.
        rates: Losses in an hour by names of devices or of types.
    """
    devices = problem.cluster.devices
    per_hour = {device.name: loss_rate(device, rates or {}) for device in devices}
    nodes: dict[str, list[str]] = {}
    for device in devices:
        nodes.setdefault(device.node, []).append(device.name)
    kinds = [
        [Loss(frozenset({name}), rate) for name, rate in per_hour.items()] if tolerated else [],
        [
            Loss(frozenset(names), NODE_SHARE * max(per_hour[name] for name in names))
            for names in nodes.values()
        ],
        list(_together(per_hour, tolerated)),
    ]
    found: dict[frozenset[str], Loss] = {}
    for kind in kinds:
        for loss in sorted(kind, key=lambda loss: -loss.per_hour):
            if len(loss.devices) < len(devices):
                found.setdefault(loss.devices, loss)
    return list(found.values())


def _together(per_hour: Mapping[str, float], tolerated: int) -> Iterator[Loss]:
    """Sets of two devices and more, as if they were independent."""
    for size in range(2, tolerated + 1):
        for names in combinations(per_hour, size):
            together = prod(per_hour[name] for name in names) * TOGETHER_HOURS ** (size - 1)
            yield Loss(frozenset(names), together)
