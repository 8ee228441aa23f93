"""Which devices a placement gets: chosen front to back, each where it talks fastest.

Where hosts take time for passes and steps, that counts as well; for the node that the first stage
begins on, so does the time of the busiest device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Flags, Floats, Integers
from heterps_envs.closed_form.placement import Placement
from heterps_envs.problem import Problem
from heterps_envs.schedule.plan_arrays import hosts_of
from heterps_envs.simulator.choice_kernels import MAX_STARTS, choose

# Names of the devices of a replica.
Group = tuple[str, ...]


class Fleet(NamedTuple):
    """The devices of a problem as kernels take them; a slot is the part of a class on one node.

    Attributes:
        slots_from: (T + 1,) where the slots of each class begin; they are in the order of their
            first devices.
        node: (K,) of each slot.
        devices_from: (K + 1,) where the devices of each slot begin.
        devices: (D,) slot by slot.
        like: (N,) the first node that equals each.
        node_of: (D,) of each device; this and the others as in `heterps_envs.node_links`.
        latency_s: (N, N)
        bandwidth: (N, N)
        back_latency_s: (N,)
        back_bandwidth: (N,)
        is_directed: (N,)
        pass_s: (D,) seconds of the host for each pass of a device.
        step_s: (D,) seconds of the host for each step.
    """

    slots_from: Integers
    node: Integers
    devices_from: Integers
    devices: Integers
    like: Integers
    node_of: Integers
    latency_s: Floats
    bandwidth: Floats
    back_latency_s: Floats
    back_bandwidth: Floats
    is_directed: Flags
    pass_s: Floats
    step_s: Floats

    @classmethod
    def of(cls, problem: Problem) -> Fleet:
        """The devices of a problem, found once."""
        known = problem.derived.get("fleet")
        if isinstance(known, cls):
            return known
        nodes = {node.name: number for number, node in enumerate(problem.cluster.nodes)}
        index, by_class = problem.links.index, list[list[list[int]]]()
        for entry in problem.classes:
            on_node: dict[str, list[int]] = {}
            for device in entry.devices:
                on_node.setdefault(device.node, []).append(index[device.name])
            by_class.append(list(on_node.values()))
        slots = [slot for slots in by_class for slot in slots]
        links, (pass_s, _, _, step_s) = problem.links.by_node, hosts_of(problem).seconds
        like = [nodes[problem.equal_nodes[name]] for name in nodes]
        found = cls(
            np.cumsum([0, *map(len, by_class)]),
            np.array([links.node_of[slot[0]] for slot in slots], np.int64),
            np.cumsum([0, *map(len, slots)]),
            np.array([device for slot in slots for device in slot], np.int64),
            np.array(like, np.int64),
            *links,
            pass_s,
            step_s,
        )
        problem.derived["fleet"] = found
        return found


def chosen_devices(problem: Problem, placement: Placement) -> list[list[Group]]:
    """For each stage the devices of its replicas; the first stage is tried on several nodes.

    Raises:
        InfeasibleError: The placement asks for more groups than its nodes have room for.
    """
    fleet, tables = Fleet.of(problem), problem.tables
    stages = np.array([(s.device_class, s.replicas, s.degree) for s in placement], np.int64)
    traffic = np.zeros((len(stages), 3))
    for row, stage in zip(traffic, placement, strict=True):
        gradient = problem.at_degree(stage.degree).gradient_bytes
        gradient_bytes = gradient[stage.first_layer : stage.last_layer + 1].sum()
        row[0] = 2 * tables.num_micro_batches / stage.replicas
        row[1] = tables.output_bytes[stage.first_layer - 1] if stage is not placement[0] else 0.0
        row[2] = float(gradient_bytes) / stage.replicas
    has_hosts = fleet.pass_s.any() or fleet.step_s.any()
    least_s, best = np.inf, np.empty((0, 0), np.int64)
    for node in _first_nodes(problem, fleet, placement):
        chosen = np.full((stages[:, 1].sum(), stages[:, 2].max()), -1, np.int64)
        seconds = choose(fleet, stages, traffic, node, problem.has_equal_nodes, chosen)
        if has_hosts:
            seconds += _busiest_s(problem, fleet, placement, chosen)
        if seconds < least_s or (seconds == seconds and not len(best)):
            least_s, best = seconds, chosen
    if not len(best):
        raise InfeasibleError(
            "the placement asks for more tensor-parallel groups than its nodes have room for"
        )
    devices = problem.cluster.devices
    rows = iter(best.tolist())
    return [
        [
            tuple([devices[device].name for device in next(rows)[: stage.degree]])
            for _ in range(stage.replicas)
        ]
        for stage in placement
    ]


def _busiest_s(problem: Problem, fleet: Fleet, placement: Placement, chosen: Integers) -> float:
    """Seconds of a step for which the busiest device computes, or its host is busy with it."""
    found_s, first = 0.0, 0
    for stage in placement:
        own = problem.at_degree(stage.degree).tables
        part = slice(stage.first_layer, stage.last_layer + 1)
        passes = 2 * own.num_micro_batches / stage.replicas
        pass_s = own.compute_s[part, stage.device_class].sum() / 2
        devices = chosen[first : first + stage.replicas, 0]
        host_s = passes * fleet.pass_s[devices] + fleet.step_s[devices]
        found_s = max(found_s, float(passes * pass_s + host_s.max()))
        first += stage.replicas
    return found_s


def _first_nodes(problem: Problem, fleet: Fleet, placement: Placement) -> list[int]:
    """Where the first stage is tried; to begin on a node that equals another one is the same."""
    part = slice(*fleet.slots_from[placement[0].device_class :][:2])
    count = np.diff(fleet.devices_from)[part]
    fitting = count >= placement[0].degree
    nodes, counts = fleet.node[part][fitting][:MAX_STARTS], count[fitting][:MAX_STARTS]
    alike = {
        (like, number): node
        for like, number, node in zip(
            fleet.like[nodes[::-1]].tolist(),
            counts[::-1].tolist(),
            nodes[::-1].tolist(),
            strict=True,
        )
    }
    return list(alike.values())[::-1]
