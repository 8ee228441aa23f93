"""When a planner found what: the better and better placements of one call, for curves."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from heterps_configs.documents.plan import Plan


class Find(NamedTuple):
    """A placement that was better than all before it.

    Attributes:
        cpu_seconds: Of the process, from the start of the budget until it was found.
        evaluations: That were charged until then; searches charge for a chunk behind it.
        cost: By what the search minimises.
        plan: Makes its plan, which takes longer than to find it; None: by its cost alone.
        view: Of the problem, in which it was found.
    """

    cpu_seconds: float
    evaluations: int
    cost: float
    plan: Callable[[], Plan] | None
    view: Hashable = None


class Finds:
    """All finds of a budget and of its parts, in the order of time."""

    def __init__(self) -> None:
        self.all: list[Find] = []
        self._least: dict[Hashable, float] = {}

    def add(self, find: Find) -> None:
        """Keeps a find that is the best by its view of the problem so far; views differ in cost."""
        if find.view not in self._least or find.cost < self._least[find.view]:
            self._least[find.view] = find.cost
            self.all.append(find)
