"""The choice of devices for a placement in plain Python, as the compiled one defines it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import gcd
from typing import NamedTuple

from heterps_configs.documents.cluster import Device, Link
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.placement import PlacedStage, Placement
from heterps_envs.links import DevicesByNode, Links, devices_by_node
from heterps_envs.problem import Problem
from heterps_envs.simulator.choice_kernels import MAX_STARTS

# The devices of a replica.
_Group = list[Device]


def reference_devices(problem: Problem, placement: Placement) -> list[list[_Group]]:
    first = Counter(device.node for device in problem.classes[placement[0].device_class].devices)
    nodes = [node for node, count in first.items() if count >= placement[0].degree][:MAX_STARTS]
    # To begin on a node that equals another one is the same.
    like = problem.equal_nodes
    nodes = list({(like[node], first[node]): node for node in reversed(nodes)}.values())[::-1]
    choices = [found for node in nodes if (found := _greedy(problem, placement, node)) is not None]
    if not choices:
        raise InfeasibleError(
            "the placement asks for more tensor-parallel groups than its nodes have room for"
        )
    return min(choices, key=lambda choice: choice[0] + _busiest_s(problem, placement, choice[1]))[1]


def _busiest_s(
    problem: Problem, placement: Placement, devices: Sequence[Sequence[_Group]]
) -> float:
    """Seconds of the busiest device, where hosts take time."""
    hosts = {node.name: node.host for node in problem.cluster.nodes}
    if not any(host.action_s or host.step_s for host in hosts.values()):
        return 0.0
    busy_s = list[float]()
    for stage, groups in zip(placement, devices, strict=True):
        layers = slice(stage.first_layer, stage.last_layer + 1)
        own_s = problem.at_degree(stage.degree).tables.compute_s[layers, stage.device_class].sum()
        micro_batches = problem.tables.num_micro_batches / stage.replicas
        for group in groups:
            host = hosts[group[0].node]
            busy_s.append(micro_batches * (own_s + 2 * host.action_s) + host.step_s)
    return max(busy_s)


class _Traffic(NamedTuple):
    """What one device exchanges in a step: messages with the stage in front, gradients beside.

    Attributes:
        peers: By node, those of the stage in front that it talks to.
        num_messages: With all of them together.
        message_bytes: Of one.
        replicas: By node, the replicas of its stage that are placed already.
        num_replicas: In the end.
        gradient_bytes: That it sends to the next one at a time.
    """

    peers: DevicesByNode
    num_messages: float
    message_bytes: float
    replicas: DevicesByNode
    num_replicas: int
    gradient_bytes: float

    def seconds_by_node(
        self, problem: Problem, free: Mapping[str, Sequence[Device]]
    ) -> dict[str, float]:
        """Seconds if it is the first free device of a node.

        Equal nodes with as many of those that it talks to are looked at once.
        """
        like, found = problem.equal_nodes, dict[tuple[str, int, int], float]()
        seconds = dict[str, float]()
        for name, devices in free.items():
            key = like[name], len(self.peers.get(name, ())), len(self.replicas.get(name, ()))
            if key not in found:
                found[key] = self.seconds(problem, devices[0])
            seconds[name] = found[key]
        return seconds

    def seconds(self, problem: Problem, device: Device) -> float:
        """Seconds of communication and of the host, if it is `device`."""
        messages, count = 0.0, 0
        for link, num_peers in _from_device(problem.links, device, self.peers):
            messages += num_peers * link.transfer_s(self.message_bytes)
            count += num_peers
        beside = _from_device(problem.links, device, self.replicas)
        longest_s = max((link.transfer_s(self.gradient_bytes) for link, _ in beside), default=0.0)
        (host,) = (each.host for each in problem.cluster.nodes if each.name == device.node)
        return (
            self.num_messages * messages / max(count, 1)
            + 2 * (self.num_replicas - 1) * longest_s
            + (self.num_messages * host.action_s + host.step_s)
        )


def _from_device(links: Links, device: Device, others: DevicesByNode) -> list[tuple[Link, int]]:
    """The links from a device to different other ones, and how many of these each leads to."""
    directed = {node.name for node in links.cluster.nodes if node.reverse_link is not None}
    found = []
    for node, devices in others.items():
        if node == device.node and node in directed:
            found += [(links.between(device, other), 1) for other in devices]
        elif devices:
            found.append((links.between(device, devices[0]), len(devices)))
    return found


def _greedy(
    problem: Problem, placement: Placement, first_node: str
) -> tuple[float, list[list[_Group]]] | None:
    """Chooses front to back; returns the seconds of communication and the devices of each stage.

    None where groups find no node with room for them.
    """
    taken: set[str] = set()
    total_s, before = 0.0, list[Device]()
    chosen: list[list[_Group]] = []
    for index, stage in enumerate(placement):
        later = [] if all(s.degree == 1 for s in placement) else placement[index + 1 :]
        best = _replicas(problem, stage, before, taken, first_node, later)
        # What one replica after the other takes may end on two nodes where one has room for all.
        for node in _nodes_with_room(problem, stage, before, taken) if taken else []:
            together = _replicas(problem, stage, before, taken, node, later, is_only=True)
            if together is not None and (best is None or together[0] < best[0]):
                best = together
        if best is None:
            return None
        total_s += best[0]
        taken.update(device.name for group in best[1] for device in group)
        chosen.append(best[1])
        before = [group[0] for group in best[1]]
    return total_s, chosen


def _nodes_with_room(
    problem: Problem, stage: PlacedStage, before: Sequence[Device], taken: set[str]
) -> list[str]:
    """Nodes that hold all replicas of a stage, where equal nodes give a choice of them."""
    if stage.replicas == 1 or not problem.has_equal_nodes:
        return []
    free = _free_by_node(problem.classes[stage.device_class].devices, taken)
    wanted = stage.replicas * stage.degree
    nodes = [node for node, found in free.items() if len(found) >= wanted][:MAX_STARTS]
    # Of equally full nodes one is as good as another, but for the stage in front.
    like, near = problem.equal_nodes, Counter(device.node for device in before)
    alike = {(like[n], len(free[n]), near[n]): n for n in reversed(nodes)}
    return list(alike.values())[::-1]


def _replicas(
    problem: Problem,
    stage: PlacedStage,
    before: Sequence[Device],
    taken: set[str],
    node: str,
    later: Sequence[PlacedStage],
    is_only: bool = False,
) -> tuple[float, list[_Group]] | None:
    """Chooses the devices of a stage, one after the other; the seconds of communication with them.

    Of a group the first device stands for all. None where no node has room for one.

    Args:
        problem: What is placed.
        stage: Which stage.
        before: Devices of the stage in front.
        taken: Devices that stages in front have.
        node: Where the very first device is.
        later: Where there are groups, the stages behind, for which room is left.
        is_only: All of them are there.
    """
    tables, is_first = problem.tables, not taken
    free = _free_by_node(problem.classes[stage.device_class].devices, taken)
    part = slice(stage.first_layer, stage.last_layer + 1)
    in_turn = gcd(len(before), stage.replicas)
    peers = [devices_by_node(before[turn::in_turn]) for turn in range(in_turn)]
    gradient_bytes = problem.at_degree(stage.degree).gradient_bytes[part].sum()
    total_s, mine, beside = 0.0, list[_Group](), dict[str, list[Device]]()
    for replica in range(stage.replicas):
        traffic = _Traffic(
            peers=peers[replica % in_turn],
            num_messages=2 * tables.num_micro_batches / stage.replicas,
            message_bytes=float(tables.output_bytes[stage.first_layer - 1]) if before else 0.0,
            replicas=beside,
            num_replicas=stage.replicas,
            gradient_bytes=float(gradient_bytes) / stage.replicas,
        )
        roomy = free
        if stage.degree > 1 or later:
            roomy = _nodes_of_groups(free, stage, replica, later)
        if is_only or (is_first and not mine):
            roomy = {name: found for name, found in roomy.items() if name == node}
        if not roomy:
            return None
        cost_s = traffic.seconds_by_node(problem, roomy)
        # Of equally fast nodes the one with most room, so that later choices stay together.
        best = min(roomy, key=lambda name: (cost_s[name], -len(roomy[name])))
        total_s += cost_s[best]
        mine.append(free[best][: stage.degree])
        beside.setdefault(best, []).append(mine[-1][0])
        free[best] = free[best][stage.degree :]
        if not free[best]:
            del free[best]
    return total_s, mine


def _nodes_of_groups(
    free: dict[str, list[Device]], stage: PlacedStage, replica: int, later: Sequence[PlacedStage]
) -> dict[str, list[Device]]:
    """Nodes with room for a group of a stage that leave room for all groups still to come."""
    wanted = [stage.degree] * (stage.replicas - replica - 1)
    for other in later:
        if other.device_class == stage.device_class:
            wanted += [other.degree] * other.replicas
    room = {name: len(found) for name, found in free.items()}
    leaves_room = {
        count: _fit({**room, name: count - stage.degree}, wanted)
        for count, name in {count: name for name, count in room.items()}.items()
        if count >= stage.degree
    }
    return {name: found for name, found in free.items() if leaves_room.get(len(found))}


def _fit(room: dict[str, int], wanted: Sequence[int]) -> bool:
    """Whether nodes with some free devices have room for groups.

    The largest first, wherever there is room: exact where each degree divides the larger ones.
    """
    left = sorted(room.values(), reverse=True)
    for degree in sorted(wanted, reverse=True):
        place = next((index for index, count in enumerate(left) if count >= degree), None)
        if place is None:
            return False
        left[place] -= degree
    return True


def _free_by_node(devices: Sequence[Device], taken: set[str]) -> dict[str, list[Device]]:
    free: dict[str, list[Device]] = {}
    for device in devices:
        if device.name not in taken:
            free.setdefault(device.node, []).append(device)
    return free
