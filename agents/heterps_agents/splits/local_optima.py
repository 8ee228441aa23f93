"""Local optima of splits: annealed coarse groups, then finer ones, then pairs divided anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from heterps_agents.splits.groups import GroupGraph, clusters_over, merge
from heterps_agents.splits.resplit import resplit_pairs
from heterps_agents.splits.search import FIRST_TEMPERATURE, Devices, anneal, fits
from heterps_envs.arrays import Integers

# Nets of more than these shares of a device's fair load are not cut, level by level.
LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
STEPS_PER_GROUP, MAX_STEPS, RESUMED_TEMPERATURE = 2000, 200_000, 5e-3


class LocalOptima:
    """Local optima of a graph's groups, one after the other.

    Args:
        groups: What is divided.
        devices: Over what.
        seed: Of the random numbers.
        best: The best split that is known when it is called.
        is_over: Whether to stop dividing pairs anew.
    """

    def __init__(
        self,
        groups: GroupGraph,
        devices: Devices,
        seed: int,
        best: Callable[[], Integers],
        is_over: Callable[[], bool],
    ) -> None:
        self._groups, self._devices, self._seed = groups, devices, seed
        self._best, self._is_over = best, is_over

    def first(self) -> Integers:
        """Annealed from the known split, without dividing pairs."""
        return self._anneal(self._groups, self._best(), self._seed)

    def along(self, order: Integers) -> Iterator[Integers]:
        """Without end: from the known split first, then from random coarse ones.

        Args:
            order: Groups in an order in which few nets are open, see `border_states.narrow_order`.
        """
        seed = self._seed
        start = self._anneal(self._groups, self._best(), seed, RESUMED_TEMPERATURE)
        yield resplit_pairs(self._groups, self._devices, start, order, self._is_over)
        levels = list(self._levels())
        while True:
            seed += 1
            found = self._from_coarse(levels, seed)
            yield resplit_pairs(self._groups, self._devices, found, order, self._is_over)

    def _levels(self) -> Iterator[tuple[Integers, GroupGraph]]:
        """Clusters of groups, and their graph, coarse to fine; the groups themselves at the end."""
        graph, devices = self._groups, self._devices
        fair_s = float(np.minimum(graph.accelerator_s, graph.cpu_s).sum())
        fair_s /= devices.num_accelerators
        last = 0
        for share in LEVELS:
            clusters = clusters_over(graph, share * fair_s)
            size = int(clusters.max()) + 1
            if 2 * devices.num_accelerators <= size < graph.num_groups and size != last:
                yield clusters, merge(graph, clusters)
                last = size
        yield np.arange(graph.num_groups), graph

    def _from_coarse(self, levels: list[tuple[Integers, GroupGraph]], seed: int) -> Integers:
        """Annealed from a random split of the coarsest graph that has one that fits."""
        draw = np.random.default_rng(seed)
        found: Integers | None = None
        for clusters, graph in levels:
            if found is None:
                start = first_split(graph, self._devices, draw)
                if not fits(graph, self._devices, start):
                    continue
                found = self._anneal(graph, start, seed)[clusters]
            else:
                start = np.zeros(graph.num_groups, np.int64)
                start[clusters] = found
                found = self._anneal(graph, start, seed, RESUMED_TEMPERATURE)[clusters]
        if found is not None:
            return found
        return self._anneal(self._groups, self._best(), seed)

    def _anneal(
        self,
        graph: GroupGraph,
        start: Integers,
        seed: int,
        first_temperature: float = FIRST_TEMPERATURE,
    ) -> Integers:
        steps = min(MAX_STEPS, STEPS_PER_GROUP * self._groups.num_groups)
        return anneal(graph, self._devices, start, steps, seed, first_temperature)


def first_split(
    graph: GroupGraph, devices: Devices, draw: np.random.Generator | None = None
) -> Integers:
    """Groups that take the most memory first, each to the emptiest accelerator, else to a CPU.

    Args:
        graph: The groups.
        devices: What they are put on.
        draw: With it, each goes to a random one of the accelerators that have room.

    Returns:
        (G,) device of each group; it need not fit.
    """
    accelerators = devices.num_accelerators
    held, start = np.zeros(accelerators), np.zeros(graph.num_groups, np.int64)
    for group in np.argsort(-graph.memory_bytes, kind="stable"):
        room = np.flatnonzero(held + graph.memory_bytes[group] <= devices.memory_bytes)
        runs = np.isfinite(graph.accelerator_s[group])
        if runs and len(room):
            device = int(room[np.argmin(held[room])] if draw is None else draw.choice(room))
            held[device] += graph.memory_bytes[group]
        elif devices.num_cpus:
            device = accelerators + int(0 if draw is None else draw.integers(devices.num_cpus))
        else:
            device = 0
        start[group] = device
    return start
