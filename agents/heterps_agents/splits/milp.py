"""Splits of an operator graph as an integer programme, for HiGHS.

Binary x[g, d]: group g is on device d. Where the members of a net are not all on one side of an
accelerator's border, its y[r, d] is 1 and its seconds are part of the load. The largest load T is
minimised. Equal accelerators are told apart by the groups: the heaviest group is on the first, the
second heaviest on the first or second, and so on.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix, csr_matrix

from heterps_agents.splits.groups import GroupGraph
from heterps_agents.splits.search import Devices
from heterps_envs.arrays import Floats, Integers

# `status` of scipy's result.
INFEASIBLE = 2
# Rows, columns and values of a sparse matrix; numbers stand for as many as there are others.
_Entry = tuple[Integers | int, Integers | int, Floats | float]


class MilpSplit(NamedTuple):
    """What HiGHS found.

    Attributes:
        assignment: (G,) device of each group; None where no split was found.
        lower_bound_s: No split has a smaller largest load, up to HiGHS's tolerance of a millionth
            of the heaviest group; inf where there is no split.
    """

    assignment: Integers | None
    lower_bound_s: float


def milp_split(
    graph: GroupGraph,
    devices: Devices,
    *,
    max_seconds: float,
    least_s: float = 0.0,
    most_s: float = math.inf,
    relative_gap: float = 0.0,
) -> MilpSplit:
    """The split with the smallest largest load, or what is known of it in time.

    Args:
        graph: The groups.
        devices: What they are put on.
        max_seconds: HiGHS stops after this long (by the clock) and returns incumbent and bound.
        least_s: A load below which there is no split.
        most_s: A load that a known split has; only splits within it are looked for.
        relative_gap: HiGHS stops when it has proven this gap.
    """
    model = _Model(graph, devices)
    scale = max(float(np.where(np.isfinite(graph.accelerator_s), graph.accelerator_s, 0).max()), 0)
    scale = scale or 1.0
    cost = np.zeros(model.size)
    cost[-1] = 1.0
    integrality = np.zeros(model.size)
    integrality[: model.num_choices] = 1
    upper = np.ones(model.size)
    upper[model.forbidden()] = 0.0
    lower = np.zeros(model.size)
    lower[-1], upper[-1] = least_s / scale, most_s / scale
    found = milp(
        cost,
        constraints=model.constraints(scale),
        integrality=integrality,
        bounds=Bounds(lower, upper),
        options={"time_limit": max_seconds, "mip_rel_gap": relative_gap},
    )
    if found.status == INFEASIBLE:
        return MilpSplit(None, math.inf)
    bound = found.mip_dual_bound
    lower_bound_s = least_s if bound is None else max(least_s, float(bound) * scale)
    if found.x is None:
        return MilpSplit(None, lower_bound_s)
    choices = found.x[: model.num_choices].reshape(graph.num_groups, -1)
    return MilpSplit(np.argmax(choices, axis=1).astype(np.int64), lower_bound_s)


class _Model:
    """Variables: x by group, then y by net, each for every device or accelerator, then T."""

    def __init__(self, graph: GroupGraph, devices: Devices) -> None:
        self.graph, self.devices = graph, devices
        self.num_devices = devices.num_accelerators + devices.num_cpus
        self.num_choices = graph.num_groups * self.num_devices
        self.size = self.num_choices + graph.num_nets * devices.num_accelerators + 1

    def x(self, groups: Integers, device: int) -> Integers:
        return groups * self.num_devices + device

    def y(self, nets: Integers, device: int) -> Integers:
        return self.num_choices + nets * self.devices.num_accelerators + device

    def forbidden(self) -> NDArray[np.int64]:
        """Choices that must be 0: devices that cannot run a group, and mirror images."""
        graph, accelerators = self.graph, self.devices.num_accelerators
        out: list[int] = []
        for device in range(self.num_devices):
            seconds = graph.accelerator_s if device < accelerators else graph.cpu_s
            out.extend(self.x(np.flatnonzero(np.isinf(seconds)), device).tolist())
        runnable = np.where(np.isfinite(graph.accelerator_s), graph.accelerator_s, -1.0)
        heaviest = np.argsort(-runnable, kind="stable")[:accelerators]
        for rank, group in enumerate(heaviest.tolist()):
            first = group * self.num_devices
            out.extend(range(first + rank + 1, first + accelerators))
        return np.array(out, dtype=np.int64)

    def constraints(self, scale: float) -> list[LinearConstraint]:
        graph, devices, accelerators = self.graph, self.devices, self.devices.num_accelerators
        groups, nets = np.arange(graph.num_groups), np.arange(graph.num_nets)
        one: list[_Entry] = [
            (groups, self.x(groups, device), 1.0) for device in range(self.num_devices)
        ]
        unit_bytes = max(devices.memory_bytes, 1.0)
        load, held = list[_Entry](), list[_Entry]()
        for device in range(self.num_devices):
            is_cpu = device >= accelerators
            seconds = graph.cpu_s if is_cpu else graph.accelerator_s
            seconds = np.where(np.isfinite(seconds), seconds, 0.0) / scale
            load.append((device, self.x(groups, device), seconds))
            load.append((device, self.size - 1, -1.0))
            if not is_cpu:
                load.append((device, self.y(nets, device), graph.net_s / scale))
                share = graph.memory_bytes / unit_bytes
                held.append((device, self.x(groups, device), share))
        result = [
            LinearConstraint(self._matrix(one, graph.num_groups), 1.0, 1.0),
            LinearConstraint(self._matrix(load, self.num_devices), -np.inf, 0.0),
        ]
        if math.isfinite(devices.memory_bytes):
            capacity = devices.memory_bytes / unit_bytes
            result.append(LinearConstraint(self._matrix(held, accelerators), -np.inf, capacity))
        if graph.num_nets:
            result.append(self._borders())
        return result

    def _borders(self) -> LinearConstraint:
        """A net is cut where its producer and a reader are not on the same side."""
        graph = self.graph
        sizes = np.diff(graph.member_start)
        net = np.repeat(np.arange(graph.num_nets), sizes - 1)
        is_reader = np.ones(len(graph.members), np.bool_)
        is_reader[graph.member_start[:-1]] = False
        reader = graph.members[is_reader]
        producer = graph.members[graph.member_start[:-1]][net]
        entries, row = list[_Entry](), np.arange(len(net))
        for device in range(self.devices.num_accelerators):
            for a, b in ((producer, reader), (reader, producer)):
                entries.append((row, self.x(a, device), 1.0))
                entries.append((row, self.x(b, device), -1.0))
                entries.append((row, self.y(net, device), -1.0))
                row = row + len(net)
        return LinearConstraint(self._matrix(entries, int(row[0])), -np.inf, 0.0)

    def _matrix(self, entries: list[_Entry], rows: int) -> csr_matrix:
        parts = [np.broadcast_arrays(*entry) for entry in entries]
        row, column, value = (np.concatenate([np.ravel(p[i]) for p in parts]) for i in range(3))
        return coo_matrix((value, (row, column)), shape=(rows, self.size)).tocsr()
