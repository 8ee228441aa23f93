"""Clusters of six families on which published planners meet: racks, spot, home, pod, volunteers.

Devices are of the shipped catalogue, with its memories and prices, links of shipped kinds. What is
drawn is who stands beside whom: a generator of numbers and how many devices there shall be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from heterps_configs.documents.cluster import Cluster, Link
from heterps_configs.documents.device import device_type_named

# Named, so that the draws of a seed stay what they are while the catalogue grows.
RACK_TYPES = (
    *("H100-80G", "A100-80G", "A100-40G", "V100-32G", "V100-16G", "L40S", "A40", "A10G", "L4"),
    *("T4", "P100"),
)
SPOT_TYPES = ("A100-40G", "V100-16G", "A10G", "L4", "T4", "L40S")
HOME_TYPES = (
    *("RTX-5090", "RTX-4090", "RTX-3090", "RTX-A6000", "Titan-RTX", "RTX-2080-Ti", "RTX-2080-8G"),
)
POD_TYPES = ("H100-80G", "A100-80G", "A100-40G", "H200-141G", "V100-32G")
VOLUNTEER_TYPES = ("RTX-4090", "RTX-3090", "RTX-2080-Ti", "T4", "V100-16G", "A10G", "RTX-A6000")
RACK_LINKS = ("ethernet-25", "ethernet-100", "infiniband-hdr")
POD_LINKS = ("infiniband-hdr", "infiniband-ndr")
REGIONS = ("america", "europe", "asia")
# Spot devices cost so much of the price on demand; a region has one price for a type.
SPOT_SHARE = (0.3, 0.45)
# Between volunteers a link is that of its kind times so much, and its latency likewise.
NOISE = (0.5, 1.6)
# Up to so many nodes, volunteers have a link of their own for each pair.
MOST_MEASURED_NODES = 16
# A problem may have 16 classes of devices: types times regions.
MOST_VOLUNTEER_TYPES = 5

Draw = Callable[[np.random.Generator, int], Cluster]
Node = dict[str, Any]


def two_type_racks(rng: np.random.Generator, num_devices: int) -> Cluster:
    """Nodes of equal devices, of two types, in one hall."""
    return _racks(rng, num_devices, 2)


def three_type_racks(rng: np.random.Generator, num_devices: int) -> Cluster:
    """The same with three types."""
    return _racks(rng, num_devices, 3)


def spot_regions(rng: np.random.Generator, num_devices: int) -> Cluster:
    """Spot nodes of few devices in two or three regions, whose prices are not the same."""
    regions = REGIONS[: int(rng.integers(2, 4))]
    types = _some(rng, SPOT_TYPES, int(rng.integers(2, 4)))
    prices = {
        (region, kind): round(
            device_type_named(kind).price_usd_per_hour * float(rng.uniform(*SPOT_SHARE)), 3
        )
        for region in regions
        for kind in types
    }
    nodes = list[Node]()
    for size in _sizes(rng, num_devices, (1, 2, 4)):
        region = regions[len(nodes)] if len(nodes) < len(regions) else _one(rng, regions)
        kind = types[len(nodes)] if len(nodes) < len(types) else _one(rng, types)
        node = _node(len(nodes), {kind: size}, prices[region, kind])
        nodes.append({**node, "region": region})
    wide = _one(rng, ("same-continent", "between-continents"))
    near = _one(rng, ("ethernet-10", "ethernet-25"))
    return _cluster("spot-regions", nodes, near, inter_region_link=wide)


def home_boxes(rng: np.random.Generator, num_devices: int) -> Cluster:
    """Boxes of one to three unlike cards behind a switch for homes."""
    types = _some(rng, HOME_TYPES, int(rng.integers(3, 6)))
    nodes = list[Node]()
    for size in _sizes(rng, num_devices, (1, 2, 2, 3)):
        cards = dict[str, int]()
        for _ in range(size):
            kind = _one(rng, types)
            cards[kind] = cards.get(kind, 0) + 1
        nodes.append(_node(len(nodes), cards))
    return _cluster("home-boxes", nodes, _one(rng, ("ethernet-1", "ethernet-10")))


def one_pod(rng: np.random.Generator, num_devices: int) -> Cluster:
    """Equal devices on equal nodes behind one fast fabric."""
    kind, size = _one(rng, POD_TYPES), min(8, num_devices)
    nodes = [_node(index, {kind: size}) for index in range(num_devices // size)]
    return _cluster("one-pod", nodes, _one(rng, POD_LINKS))


def volunteers(rng: np.random.Generator, num_devices: int) -> Cluster:
    """Single devices all over the world; where they are few, each pair has a link of its own."""
    regions = REGIONS[: int(rng.integers(2, 4))]
    types = _some(rng, VOLUNTEER_TYPES, int(rng.integers(2, MOST_VOLUNTEER_TYPES + 1)))
    nodes = [
        {**_node(index, {_one(rng, types): 1}), "region": _one(rng, regions)}
        for index in range(num_devices)
    ]
    overrides = list(_measured(rng, nodes)) if num_devices <= MOST_MEASURED_NODES else []
    return _cluster(
        "volunteers", nodes, "same-continent", inter_region_link="between-continents",
        link_overrides=overrides,
    )  # fmt: skip


CLUSTERS: Mapping[str, Draw] = MappingProxyType(
    {
        "two-type-racks": two_type_racks,
        "three-type-racks": three_type_racks,
        "spot-regions": spot_regions,
        "home-boxes": home_boxes,
        "one-pod": one_pod,
        "volunteers": volunteers,
    }
)


def _racks(rng: np.random.Generator, num_devices: int, num_types: int) -> Cluster:
    """Nodes in the order of their types; each type has one at least."""
    types = _some(rng, RACK_TYPES, num_types)
    largest = 8 if num_devices >= 8 * num_types else max(1, num_devices // num_types)
    size = max(each for each in (1, 2, 4, 8) if each <= largest)
    num_nodes = num_devices // size
    cuts = np.sort(rng.choice(np.arange(1, num_nodes), num_types - 1, replace=False))
    counts = np.diff([0, *(int(cut) for cut in cuts), num_nodes])
    nodes = list[Node]()
    for kind, count in zip(types, counts, strict=True):
        nodes += [_node(len(nodes) + index, {kind: size}) for index in range(int(count))]
    return _cluster(f"{num_types}-type-racks", nodes, _one(rng, RACK_LINKS))


def _node(index: int, devices: Mapping[str, int], price: float | None = None) -> Node:
    """Devices of one type have their own fastest link, unlike ones what all of them have."""
    groups = [
        {"name": f"n{index}-{kind}", "type": kind, "count": count, "price_usd_per_hour": price}
        for kind, count in devices.items()
    ]
    links = [device_type_named(kind).links for kind in devices]
    link = links[0][0] if len(links) == 1 else min(each[-1] for each in links)
    return {"name": f"n{index}", "devices": groups, "link": link}


def _measured(rng: np.random.Generator, nodes: list[Node]) -> Iterator[dict[str, Any]]:
    """Links of volunteers as somebody has measured them: no two alike."""
    for first, one in enumerate(nodes):
        for other in nodes[first + 1 :]:
            is_near = one["region"] == other["region"]
            link = Link.model_validate("same-continent" if is_near else "between-continents")
            slower, later = rng.uniform(*NOISE), rng.uniform(*NOISE)
            yield {
                "between": (one["name"], other["name"]),
                "link": {
                    "latency_s": float(f"{link.latency_s * later:.3g}"),
                    "bandwidth_bytes_per_s": float(f"{link.bandwidth_bytes_per_s * slower:.3g}"),
                },
            }


def _cluster(name: str, nodes: list[Node], between: str, **others: Any) -> Cluster:
    return Cluster.from_mapping(
        {"name": name, "nodes": nodes, "inter_node_link": between, **others}
    )


def _sizes(rng: np.random.Generator, num_devices: int, allowed: tuple[int, ...]) -> Iterator[int]:
    """Devices of one node after the other; there are two nodes at least."""
    left = num_devices
    while left:
        size = min(left, int(rng.choice(allowed)), (num_devices + 1) // 2)
        yield size
        left -= size


def _some(rng: np.random.Generator, names: tuple[str, ...], number: int) -> tuple[str, ...]:
    return tuple(str(name) for name in rng.choice(names, number, replace=False))


def _one(rng: np.random.Generator, names: tuple[str, ...]) -> str:
    return str(rng.choice(names))
