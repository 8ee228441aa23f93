"""Links within a host and between hosts, from topology and network interfaces."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from heterps_runtime.discovery.gpus import Gpu
from heterps_runtime.discovery.host import Host
from heterps_runtime.discovery.interfaces import Interface
from heterps_runtime.discovery.link_kinds import NotedLink, network, nvlink, pcie, processes, xgmi

_MOST_NAMED_PAIRS = 8


def link_within(host: Host) -> tuple[NotedLink | None, tuple[str, ...]]:
    """The link between any two devices of a host, and remarks: the slowest where they differ.

    Args:
        host: With GPUs or without.
    """
    if not host.gpus:
        several = host.processors.num_processes > 1
        return (processes() if several else None), ()
    pairs = list(itertools.combinations(host.gpus, 2))
    if not pairs:
        return None, ()
    links = [_between(host, first, second) for first, second in pairs]
    slowest = min(links, key=lambda link: link.bandwidth_bytes_per_s)
    faster = [
        (first, second, link)
        for (first, second), link in zip(pairs, links, strict=True)
        if link.bandwidth_bytes_per_s > slowest.bandwidth_bytes_per_s
    ]
    if not faster:
        return slowest, ()
    most = max(link.bandwidth_bytes_per_s for _, _, link in faster)
    named = [f"{first.index}-{second.index}" for first, second, _ in faster[:_MOST_NAMED_PAIRS]]
    more = ", ..." if len(faster) > len(named) else ""
    remark = (
        f"{host.name}: {len(faster)} of {len(pairs)} pairs of GPUs ({', '.join(named)}{more}) have "
        f"faster links, up to {most / 1e9:.4g} GB/s; a node has one link, and the file has the "
        "slowest"
    )
    return replace(slowest, note=f"the slowest pair: {slowest.note}"), (remark,)


def _between(host: Host, first: Gpu, second: Gpu) -> NotedLink:
    way = host.topology.ways.get((first.index, second.index), "")
    if way == "XGMI":
        return xgmi()
    if way.startswith("NV"):
        speeds = host.topology.nvlink_gb_per_s
        known = [speeds[gpu.index] for gpu in (first, second) if gpu.index in speeds]
        return nvlink(int(way[2:]), min(known, default=None))
    generations = [gpu.pcie_generation for gpu in (first, second) if gpu.pcie_generation]
    lanes = [gpu.pcie_lanes for gpu in (first, second) if gpu.pcie_lanes]
    is_known = len(generations) == len(lanes) == 2
    return pcie(min(generations) if is_known else None, min(lanes) if is_known else None, way)


def links_between(
    hosts: Sequence[Host],
) -> tuple[NotedLink | None, dict[tuple[str, str], NotedLink]]:
    """The link between hosts, the slowest of all, and those of pairs that have a faster one.

    Args:
        hosts: In the order of the file.
    """
    pairs = dict(_pairs(hosts))
    if not pairs:
        return None, {}
    base = min(pairs.values(), key=lambda link: link.bandwidth_bytes_per_s)
    faster = {
        names: link
        for names, link in pairs.items()
        if link.bandwidth_bytes_per_s > base.bandwidth_bytes_per_s
    }
    return base, faster


def _pairs(hosts: Sequence[Host]) -> Iterator[tuple[tuple[str, str], NotedLink]]:
    for first, second in itertools.combinations(hosts, 2):
        yield (first.name, second.name), _fastest_common(first.interfaces, second.interfaces)


def _fastest_common(first: Sequence[Interface], second: Sequence[Interface]) -> NotedLink:
    """By a kind of network that both have; Ethernet of an assumed speed where none is known."""
    found = []
    for own, other in itertools.product(first, second):
        if own.kind == other.kind and own.gbit_per_s and other.gbit_per_s:
            found.append(network(own.kind, min(own.gbit_per_s, other.gbit_per_s)))
    return max(
        found, key=lambda link: link.bandwidth_bytes_per_s, default=network("ethernet", None)
    )
