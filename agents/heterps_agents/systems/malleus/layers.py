"""Layers for the groups of pipelines, then micro-batches for the pipelines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from heterps_agents.systems.malleus.dealing import MAX_ENUMERATED
from heterps_agents.systems.malleus.groups import Kind
from heterps_agents.systems.malleus.memory import Memory
from heterps_agents.systems.malleus.plans import (
    Group,
    StragglerPipeline,
    StragglerPlan,
    UniformPlan,
)
from heterps_agents.systems.malleus.shares import split_least
from heterps_configs.errors import InfeasibleError


class _Split(NamedTuple):
    """Order: of the groups as they were given."""

    order: tuple[int, ...]
    layers: tuple[int, ...]
    seconds: float


class Solver:
    """The two integer programmes. What it has found for one pipeline serves all that are alike.

    Args:
        uniform: What is shared: layers and micro-batches.
        memory: Of stages; None: without limit.
        quickest: Slow-down of a group that is not slow.
    """

    def __init__(self, uniform: UniformPlan, memory: Memory | None, quickest: float) -> None:
        self._uniform, self._memory, self._quickest = uniform, memory, quickest
        self._kinds: dict[tuple[str, ...], Kind] = {}
        self._known: dict[tuple[Kind, ...], _Split | None] = {}

    def is_slow(self, group: Group) -> bool:
        """Whether others are quicker."""
        return group.slowdown > self._quickest

    def kind(self, group: Group) -> Kind:
        """What tells it from other groups."""
        found = self._kinds.get(group.devices)
        if found is None:
            limit = self._memory.limit_of(group.devices) if self._memory else 0.0
            found = group.slowdown, len(group.devices), limit
            self._kinds[group.devices] = found
        return found

    def best_order(
        self, dealt: Sequence[Sequence[Group]], below: float = math.inf
    ) -> StragglerPlan | None:
        """Pipelines of these groups, with the slow ones of each in the best order in front.

        Returns:
            None where the layers or the micro-batches do not fit, or no plan takes less than
            `below`.
        """
        found: list[tuple[Sequence[Group], _Split]] = []
        for groups in dealt:
            key = tuple(map(self.kind, groups))
            if key not in self._known:
                self._known[key] = self._best_split(groups)
            split = self._known[key]
            if split is None:
                return None
            found.append((groups, split))
        # As if micro-batches could be shared freely.
        least = self._uniform.num_micro_batches / sum(1 / split.seconds for _, split in found)
        plan = self._shared(found) if least < below else None
        return plan if plan is not None and plan.seconds < below else None

    def in_order(self, dealt: Sequence[Sequence[Group]]) -> StragglerPlan | None:
        """Pipelines of these groups as they stand; None where something does not fit."""
        found = []
        for groups in dealt:
            split = self._split(groups, tuple(range(len(groups))))
            if split is None:
                return None
            found.append((groups, split))
        return self._shared(found)

    def _shared(self, found: Sequence[tuple[Sequence[Group], _Split]]) -> StragglerPlan | None:
        try:
            shares = split_least(
                [split.seconds for _, split in found],
                self._uniform.num_micro_batches,
                least=[len(groups) for groups, _ in found],
            )
        except InfeasibleError:
            return None
        pipelines = tuple(
            StragglerPipeline(
                tuple(groups[index] for index in split.order), split.layers, split.seconds, share
            )
            for (groups, split), share in zip(found, shares, strict=True)
        )
        slowest = max(pipeline.seconds * pipeline.micro_batches for pipeline in pipelines)
        return StragglerPlan(pipelines, (), slowest)

    def _best_split(self, groups: Sequence[Group]) -> _Split | None:
        """The order of the slow groups, all in front, whose slowest stage is the quickest."""
        slow = [index for index, group in enumerate(groups) if self.is_slow(group)]
        normal = [index for index in range(len(groups)) if index not in slow]
        best: _Split | None = None
        for front in self._orders(groups, slow):
            split = self._split(groups, (*front, *normal))
            if split is not None and (best is None or split.seconds < best.seconds):
                best = split
        return best

    def _split(self, groups: Sequence[Group], order: tuple[int, ...]) -> _Split | None:
        num_layers, memory = self._uniform.num_layers, self._memory
        ordered = [groups[index] for index in order]
        slowdowns = [group.slowdown for group in ordered]
        most = [
            min(num_layers, memory.room(group, stage, len(ordered))) if memory else num_layers
            for stage, group in enumerate(ordered)
        ]
        try:
            layers = split_least(slowdowns, num_layers, most)
        except InfeasibleError:
            return None
        seconds = max(y * n for y, n in zip(slowdowns, layers, strict=True))
        return _Split(order, layers, seconds)

    def _orders(self, groups: Sequence[Group], slow: Sequence[int]) -> list[tuple[int, ...]]:
        """Orders of the slow groups that differ in their kinds; one, where they are many."""
        if self._memory is None or len(slow) > MAX_ENUMERATED:
            return [tuple(slow)]
        orders: dict[tuple[Kind, ...], tuple[int, ...]] = {}
        for order in permutations(slow):
            orders.setdefault(tuple(self.kind(groups[index]) for index in order), order)
        return list(orders.values())
