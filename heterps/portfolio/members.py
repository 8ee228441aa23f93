"""Who searches beside a planner, each in a process of its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import count, islice
from typing import NamedTuple

from heterps_agents.interface.patient import is_search
from heterps_agents.interface.planner import Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.interface.system import System
from heterps_agents.learned.efforts import EffortPlanner
from heterps_configs.arguments import check_whole
from heterps_configs.errors import HeterpsError
from heterps_runtime.process.cores import usable_cores

# More are no gain, and a typing error would start them all.
MOST_PROCESSES = 256
# Beside `auto`, in this order: each the one that together with those before it is at or below all
# others most often, on 87 development problems of the field. After these `auto` itself, with one
# seed after the other.
BESIDE_AUTO = (
    ("asymmetric", 0),
    ("genetic", 0),
    ("auto", 1),
    ("cross-entropy", 0),
    ("unlearned-beam", 0),
    ("annealing", 0),
    ("ppo", 0),
)


class Member(NamedTuple):
    """A search by its name, which another process knows as well.

    Attributes:
        effort: None: its usual one, or it knows none.
    """

    name: str
    seed: int
    effort: str | None

    def planner(self) -> Planner:
        """The planner itself."""
        planner = planner_named(self.name, self.seed)
        if self.effort is not None and isinstance(planner, EffortPlanner):
            planner.effort = self.effort
        return planner


def members(planner: Planner | System, processes: int) -> list[Member]:
    """Who searches in the other processes: one fewer than there are processes.

    Beside `auto` these are unlike searches. Beside another search it is the same one with other
    seeds. Of all others more processes would answer the same: there is a warning, and nobody.

    Args:
        planner: Who searches in this process.
        processes: How many there may be, this one with them.

    Raises:
        HeterpsError: There cannot be so many.
    """
    allowed = f"a whole number from 1 to {MOST_PROCESSES}, this process with them"
    check_whole("processes", processes, allowed)
    if not 1 <= processes <= MOST_PROCESSES:
        raise HeterpsError(f"processes: is {processes}; allowed: {allowed}")
    if processes == 1:
        return []
    if not _is_known_search(planner):
        warnings.warn(
            f"the planner {planner.name} has one answer, whatever its seed, or no other process "
            "knows it: one process searches",
            stacklevel=4,
        )
        return []
    cores = usable_cores()
    if processes > cores:
        warnings.warn(
            f"{processes} processes share {cores} cores: each has a part of its seconds",
            stacklevel=4,
        )
    effort = planner.effort if isinstance(planner, EffortPlanner) else None
    first = int(getattr(planner, "seed", 0))
    beside: Sequence[tuple[str, int]] = BESIDE_AUTO if planner.name == "auto" else ()
    later = count(1 + max((seed for name, seed in beside if name == planner.name), default=0))
    named = [*beside, *((planner.name, seed) for seed in islice(later, processes))]
    return [Member(name, first + seed, effort) for name, seed in named[: processes - 1]]


def _is_known_search(planner: Planner | System) -> bool:
    """Whether it draws random numbers, and is what a process gets that asks for its name."""
    if not is_search(planner):
        return False
    try:
        return type(planner_named(planner.name)) is type(planner)
    except HeterpsError:
        return False
