"""The cluster: its nodes as boxes, their devices as squares in the colour of their stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from heterps.html_report.colors import IDLE, device_colors, group_colors
from heterps.html_report.markup import Markup, joined, tag
from heterps.reports.folding import StageGroup, folded_names
from heterps_configs.documents.cluster import Link, Node
from heterps_configs.units import bytes_text
from heterps_envs.problem import Problem

# Nodes that look alike are one box where there are more of them.
MOST_NODES = 12


@dataclass(frozen=True)
class _Look:
    """What a node looks like: equal looks are one box."""

    types: tuple[str, ...]
    colors: tuple[str, ...]
    link: str


def cluster_picture(problem: Problem, groups: Sequence[StageGroup]) -> Markup:
    """Boxes of nodes, a line about the links between them, and what the colours mean."""
    colors = device_colors(groups)
    looks: dict[_Look, list[Node]] = {}
    for node in problem.cluster.nodes:
        looks.setdefault(_look(problem, node, colors), []).append(node)
    is_folded = len(problem.cluster.nodes) > MOST_NODES
    boxes = [
        _box(problem, look, nodes if is_folded else [node], colors)
        for look, nodes in looks.items()
        for node in (nodes[:1] if is_folded else nodes)
    ]
    between = problem.cluster.inter_node_link
    line = f"between nodes: {_link_text(between)}" if len(problem.cluster.nodes) > 1 else ""
    return joined([
        tag("div", *boxes, class_="nodes"),
        tag("p", line, class_="note") if line else None,
        _legend(groups, is_any_idle=len(colors) < len(problem.cluster.devices)),
    ])  # fmt: skip


def _look(problem: Problem, node: Node, colors: Mapping[str, str]) -> _Look:
    names = list(_names(node))
    types = tuple(problem.device_named[name].type.name for name in names)
    return _Look(types, tuple(colors.get(name, IDLE) for name in names), _link_text(node.link))


def _box(problem: Problem, look: _Look, nodes: Sequence[Node], colors: Mapping[str, str]) -> Markup:
    names = list(_names(nodes[0]))
    squares = [
        tag(
            "span", class_="device" if name in colors else "device idle",
            style=f"background:{colors.get(name, IDLE)}", title=_title(problem, name),
        )
        for name in names
    ]  # fmt: skip
    kinds = [f"{look.types.count(kind)} {kind}" for kind in dict.fromkeys(look.types)]
    label = folded_names(node.name for node in nodes)
    count = f"{len(nodes)} x " if len(nodes) > 1 else ""
    inside = tag("small", look.link) if len(names) > 1 else None
    return tag(
        "div", tag("b", f"{count}{label}"), tag("small", ", ".join(kinds)),
        tag("div", *squares, class_="devices"), inside, class_="node",
    )  # fmt: skip


def _title(problem: Problem, name: str) -> str:
    device = problem.device_named[name]
    return f"{name}: {device.type.name}, {bytes_text(device.memory_bytes)}"


def _names(node: Node) -> Iterator[str]:
    for group in node.devices:
        yield from group.device_names()


def _link_text(link: Link | None) -> str:
    """Such as `300 GB/s, 5 us`."""
    if link is None or not link.is_there:
        return "no link"
    return f"{link.bandwidth_bytes_per_s / 1e9:.3g} GB/s, {link.latency_s * 1e6:.3g} us"


def _legend(groups: Sequence[StageGroup], is_any_idle: bool) -> Markup:
    entries = [_key(color, f"{label}") for label, color in group_colors(groups).items()]
    entries += [_key(IDLE, "idle")] if is_any_idle else []
    return tag("div", *entries, class_="legend")


def _key(color: str, label: str) -> Markup:
    return tag("span", tag("i", style=f"background:{color}"), label)
