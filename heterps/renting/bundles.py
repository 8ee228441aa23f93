"""Sets of devices that one could rent, whatever the budget: chains in which each holds the last.

Each chain is an order of all devices, or of those of one type: by speed for the money, by speed, in
turns by type; of one region before the others. Its sets are its beginnings; neighbours in a chain
differ by a tenth in price, or a quarter in number. A larger budget affords all that a smaller one
does, and more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from heterps.renting.offer import nodes_first
from heterps_configs.documents.cluster import Device
from heterps_envs.problem import Problem

# A set is this much dearer than the one before it in its chain, or has so many more devices.
DEARER, LARGER = 1.1, 1.25


class Bundle(NamedTuple):
    """Some devices.

    Attributes:
        names: Of the devices.
        usd_per_hour: What they cost together.
    """

    names: frozenset[str]
    usd_per_hour: float


def chains(problem: Problem) -> list[list[Bundle]]:
    """The chains of a problem; in each the smallest set comes first."""
    orders = {tuple(device.name for device in order): order for order in _orders(problem)}
    return [list(_bundles(order)) for order in orders.values()]


def _orders(problem: Problem) -> Iterator[list[Device]]:
    devices = problem.cluster.devices
    speed = _speeds(problem)
    types = sorted({device.type.name for device in devices})
    homes = dict.fromkeys(device.region for device in devices)
    for home in homes:
        own = {
            name: nodes_first((each for each in devices if each.type.name == name), home)
            for name in types
        }
        yield from own.values()
        fastest = sorted(types, key=lambda name: -speed[name])
        cheapest = sorted(
            types, key=lambda name: -speed[name] / max(own[name][0].price_usd_per_hour, 1e-9)
        )
        for order in (fastest, cheapest):
            yield [device for name in order for device in own[name]]
        yield _in_turns([own[name] for name in cheapest])
        near = [device for device in devices if device.region == home]
        if len(homes) > 1:
            yield nodes_first(sorted(near, key=lambda each: -speed[each.type.name]))


def _speeds(problem: Problem) -> dict[str, float]:
    """Models per second of one device of each type."""
    seconds = problem.layer_times.forward_s + problem.layer_times.backward_s
    total = np.asarray(seconds.sum(axis=0), float)
    speed: dict[str, float] = {}
    for entry, each_s in zip(problem.classes, total.tolist(), strict=True):
        speed[entry.type.name] = max(speed.get(entry.type.name, 0.0), 1 / max(each_s, 1e-30))
    return speed


def _in_turns(lists: list[list[Device]]) -> list[Device]:
    """A node of each type in turn, those that have had least money first."""
    left = [_by_node(own) for own in lists]
    spent = [0.0] * len(left)
    order: list[Device] = []
    while any(left):
        turn = min((i for i, nodes in enumerate(left) if nodes), key=spent.__getitem__)
        node = left[turn].pop(0)
        order += node
        spent[turn] += sum(device.price_usd_per_hour for device in node)
    return order


def _by_node(devices: list[Device]) -> list[list[Device]]:
    found: dict[str, list[Device]] = {}
    for device in devices:
        found.setdefault(device.node, []).append(device)
    return list(found.values())


def _bundles(order: list[Device]) -> Iterator[Bundle]:
    """Beginnings of an order that are far enough apart; the whole of it is one."""
    names: list[str] = []
    price, last_price, last_count = 0.0, 0.0, 0
    for place, device in enumerate(order):
        names.append(device.name)
        price += device.price_usd_per_hour
        is_last = place + 1 == len(order)
        is_apart = price >= DEARER * last_price > 0 or len(names) >= LARGER * last_count
        if is_last or is_apart:
            yield Bundle(frozenset(names), price)
            last_price, last_count = price, len(names)
