"""What papers' systems ask of the devices of a problem: are they equal, and their slowest link."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, permutations

from heterps_configs.documents.cluster import Link
from heterps_envs.problem import Problem


def why_unequal(problem: Problem) -> str | None:
    """Why a method for equal devices cannot express a problem; None: its devices are equal."""
    kinds = {(device.type.name, device.memory_bytes) for device in problem.cluster.devices}
    if len(kinds) == 1:
        return None
    return f"needs equal devices; the cluster has {counted_types(problem)}"


def counted_types(problem: Problem) -> str:
    """Such as `4 A100-40G and 8 V100-16G`."""
    counts = Counter(device.type.name for device in problem.cluster.devices)
    texts = [f"{count} {name}" for name, count in counts.items()]
    if len(texts) == 1:
        return f"{texts[0]} of unlike memory"
    return " and ".join([", ".join(texts[:-1]), texts[-1]])


def nodes_of(problem: Problem) -> list[list[str]]:
    """Names of the devices of each node, in the order of the file."""
    devices = problem.cluster.devices
    return [
        [device.name for device in group]
        for _, group in groupby(devices, lambda device: device.node)
    ]


def slowest_link(problem: Problem, pairs: list[tuple[str, str]]) -> Link | None:
    """The link of least bandwidth between some pairs of devices; None where there is no pair."""
    links = [problem.link(*pair) for pair in pairs]
    return min(links, key=lambda link: link.bandwidth_bytes_per_s, default=None)


def link_inside(problem: Problem, names: list[str]) -> Link | None:
    """The slowest link between any two of some devices; None for a single one."""
    return slowest_link(problem, list(permutations(names, 2)))
