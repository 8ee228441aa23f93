"""Which group of devices stands where: annealing over their order, each with its best split.

The order says the stages from the front, and within a stage its replicas. Replica j of a stage
talks to replica j of the next one. A stage's all-reduce is as slow as the slowest link between any
two of its groups; messages to the next stage as the slowest of the replicas' links.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.amp.split import SAME, Layers, Split, Stages, best_split
from heterps_agents.systems.node_links import NodeLinks
from heterps_envs.arrays import Floats, Integers
from heterps_envs.problem import Problem

# Orders that annealing looks at.
STEPS = 200
# Of the first cost: what is accepted at the beginning with probability 1/e, and at the end.
HOTTEST, COLDEST = 3e-2, 1e-4
# How often two whole stages change places, not two groups.
SHARE_OF_STAGES = 0.3


@dataclass(frozen=True)
class Units:
    """Groups of devices that take part in the order.

    Attributes:
        names: Devices of each.
        kinds: Device class of each.
        s_per_byte: (U, U) of the link between two of them; 0 on the diagonal.
    """

    names: tuple[tuple[str, ...], ...]
    kinds: tuple[int, ...]
    s_per_byte: Floats

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.names)

    @cached_property
    def fastest_s_per_byte(self) -> float:
        """Of all links between two of them; 0 for a single one."""
        if self.number == 1:
            return 0.0
        return float(self.s_per_byte[~np.eye(self.number, dtype=bool)].min())

    @cached_property
    def are_alike(self) -> bool:
        """Whether every order is the same."""
        return len(set(self.kinds)) == 1 and self.fastest_s_per_byte == self.s_per_byte.max()


class Shape(NamedTuple):
    """How many replicas and stages the units are, and micro-batches of one pipeline."""

    replicas: int
    stages: int
    micro_batches: int


class Ordered(NamedTuple):
    """Units in an order, and the best split over them."""

    order: tuple[int, ...]
    split: Split


def units_of(problem: Problem, groups: list[tuple[str, ...]]) -> Units:
    """Groups of devices of a problem, each of one class on one node."""
    links = NodeLinks.of(problem)
    nodes = [links.node_of[group[0]] for group in groups]
    s_per_byte = links.s_per_byte[np.ix_(nodes, nodes)]
    np.fill_diagonal(s_per_byte, 0.0)
    return Units(tuple(groups), tuple(problem.class_of[group[0]] for group in groups), s_per_byte)


class Orders:
    """Orders of units with one choice of degrees; each placing of links is split once.

    Args:
        layers: At the degree of the units.
        units: In the order of the cluster.
        shape: Their replicas and stages.
        budget: Counts the splits.
    """

    def __init__(self, layers: Layers, units: Units, shape: Shape, budget: Budget) -> None:
        assert units.number == shape.replicas * shape.stages
        self.layers, self.units, self.shape, self.budget = layers, units, shape, budget
        self._splits: dict[Stages, Split] = {}
        self._seen: dict[tuple[object, ...], Ordered] = {}

    def split(self, order: Integers) -> Split:
        """The best split over an order."""
        found = self._stages(order)
        split = self._splits.get(found)
        if split is None:
            self.budget.spend()
            split = self._splits[found] = best_split(self.layers, found)
        self._remember(order, split)
        return split

    def best(self, most: int) -> list[Ordered]:
        """Of the orders that were looked at, the best ones that differ in more than names."""
        return sorted(self._seen.values(), key=lambda each: each.split.seconds)[:most]

    def anneal(self, seed: int, most: int) -> None:
        """Looks at orders near good ones, from that of the cluster on.

        It ends early where an order costs no more than any could, and there are others besides.

        Args:
            seed: Of what is drawn.
            most: How many orders are wanted.
        """
        order = np.arange(self.units.number)
        seconds = least_s = self.split(order).seconds
        if self.units.are_alike or self.shape.stages == 1:
            return
        rng, first_s = np.random.default_rng(seed), seconds
        cooling, enough_s = COLDEST / HOTTEST, self._bound_s() * (1 + SAME)
        for step in range(STEPS):
            is_done = least_s <= enough_s and len(self._seen) >= most
            if is_done or self.budget.is_exhausted:
                return
            tried = self._moved(order, rng)
            tried_s = self.split(tried).seconds
            hot_s = first_s * HOTTEST * cooling ** (step / STEPS)
            if tried_s <= seconds or rng.random() < math.exp((seconds - tried_s) / hot_s):
                order, seconds = tried, tried_s
                least_s = min(least_s, seconds)

    def _moved(self, order: Integers, rng: np.random.Generator) -> Integers:
        """Two stages, or two units of different ones, change places."""
        grid = order.reshape(self.shape.stages, self.shape.replicas).copy()
        one, two = rng.choice(self.shape.stages, 2, replace=False)
        if rng.random() < SHARE_OF_STAGES:
            grid[[one, two]] = grid[[two, one]]
        else:
            left, right = rng.integers(self.shape.replicas, size=2)
            grid[one, left], grid[two, right] = grid[two, right], grid[one, left]
        return grid.ravel()

    def _bound_s(self) -> float:
        """No order of the units costs less: the best split where all links are the fastest."""
        fastest, stages = self.units.fastest_s_per_byte, self.shape.stages
        rings = (_ring_share(self.shape.replicas) * fastest,) * stages
        links = (fastest,) * (stages - 1)
        return best_split(self.layers, Stages(self.shape.micro_batches, rings, links)).seconds

    def _stages(self, order: Integers) -> Stages:
        """Rings and links of an order."""
        grid = order.reshape(self.shape.stages, self.shape.replicas)
        between = self.units.s_per_byte
        slowest = between[grid[:, :, None], grid[:, None, :]].max(axis=(1, 2))
        rings = (_ring_share(self.shape.replicas) * slowest).tolist()
        links = between[grid[:-1], grid[1:]].max(axis=1).tolist()
        return Stages(self.shape.micro_batches, tuple(rings), tuple(links))

    def _remember(self, order: Integers, split: Split) -> None:
        """By the classes of each stage: other orders of these are the same plan to memory."""
        kinds = np.array(self.units.kinds)[order].reshape(self.shape.stages, self.shape.replicas)
        key = tuple(np.sort(kinds, axis=1).ravel().tolist()), split.stops
        known = self._seen.get(key)
        if known is None or split.seconds < known.split.seconds:
            self._seen[key] = Ordered(tuple(order.tolist()), split)


def _ring_share(replicas: int) -> float:
    """How often a ring moves all bytes."""
    return 2 * (replicas - 1) / replicas
