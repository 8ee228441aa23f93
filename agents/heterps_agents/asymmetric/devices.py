"""Which devices a pipeline of classes gets: each near the stage in front of it.

The largest pipelines choose first. Stages are filled from front to back, each replica on the node
that its messages reach fastest; of equally fast nodes on the one with the least room, so that large
pieces of nodes are left for others. The first stage is tried on several nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from heterps_agents.asymmetric.pipes import Stages, View
from heterps_agents.asymmetric.weave import Group, Part
from heterps_configs.documents.cluster import Device

# Nodes on which the first stage is tried.
MOST_STARTS = 4
Parts = tuple[Part, ...]
# By class and node.
_Free = dict[int, dict[str, list[Device]]]


def on_devices(view: View, pipes: Sequence[Stages]) -> tuple[Parts, ...] | None:
    """Pipelines on devices, in the order given; None where no node has room for a group."""
    free: _Free = {}
    for kind, entry in enumerate(view.problem.classes):
        by_node = free.setdefault(kind, {})
        for device in entry.devices:
            by_node.setdefault(device.node, []).append(device)
    found = dict[int, Parts]()
    largest_first = sorted(range(len(pipes)), key=lambda i: (-sum(view.counts(pipes[i])), i))
    for index in largest_first:
        chosen = _nearest(view, pipes[index], free)
        if chosen is None:
            return None
        found[index], free = chosen
    return tuple(found[index] for index in range(len(pipes)))


def _nearest(view: View, stages: Stages, free: _Free) -> tuple[Parts, _Free] | None:
    """A pipeline on devices, and what is left of those that were free."""
    first = view.options[stages[0][1]]
    room = [
        (name, len(devices))
        for name, devices in free[first.device_class].items()
        if len(devices) >= first.degree
    ]
    # To begin on a node that equals another one, as free, is the same.
    like = view.problem.equal_nodes
    starts = list({(like[name], count): name for name, count in reversed(room)}.values())[::-1]
    best: tuple[float, Parts, _Free] | None = None
    for start in starts[:MOST_STARTS]:
        left = {kind: {n: list(d) for n, d in by.items()} for kind, by in free.items()}
        found = _filled(view, stages, left, start)
        if found is not None and (best is None or found[0] < best[0]):
            best = (*found, left)
    return None if best is None else best[1:]


def _filled(view: View, stages: Stages, free: _Free, start: str) -> tuple[float, Parts] | None:
    """Seconds of messages, and the parts, with the first replica on a node."""
    before, total_s, parts, first = list[Device](), 0.0, list[Part](), 0
    for stop, option, replicas in stages:
        way, own, groups = view.options[option], list[Device](), list[Group]()
        num_bytes = float(view.kernel.output_bytes[first - 1]) if before else 0.0
        by_node = free[way.device_class]
        for _ in range(replicas):
            nodes = [name for name, devices in by_node.items() if len(devices) >= way.degree]
            if not before and not own:
                nodes = [name for name in nodes if name == start]
            if not nodes:
                return None
            seconds = {
                name: sum(
                    view.problem.link(peer.name, by_node[name][0].name).transfer_s(num_bytes)
                    for peer in before
                )
                for name in nodes
            }
            node = min(nodes, key=lambda name: (seconds[name], len(by_node[name])))
            total_s += seconds[node] / max(len(before), 1)
            taken, by_node[node] = by_node[node][: way.degree], by_node[node][way.degree :]
            own.append(taken[0])
            groups.append(tuple(device.name for device in taken))
        parts.append(Part(stop, tuple(groups), way.memory))
        before, first = own, stop
    return total_s, tuple(parts)
