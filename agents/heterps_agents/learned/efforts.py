"""How hard learned placers try: efforts by name, from the shipped document `efforts`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Protocol, runtime_checkable

from heterps_agents.interface.planner import Planner
from heterps_configs.documents.effort import Effort
from heterps_configs.errors import UnknownNameError
from heterps_configs.library import load_efforts

DEFAULT_EFFORT = "normal"


@cache
def efforts() -> Mapping[str, Effort]:
    """All efforts by name, the least first; read once."""
    return load_efforts().efforts


def effort_named(name: str) -> Effort:
    """The effort called `name`.

    Raises:
        UnknownNameError: With near names.
    """
    if name not in efforts():
        raise UnknownNameError("effort", name, tuple(efforts()))
    return efforts()[name]


def harder(effort: str) -> str:
    """The next effort, where there is one."""
    names = list(efforts())
    return names[min(names.index(effort) + 1, len(names) - 1)]


@runtime_checkable
class EffortPlanner(Planner, Protocol):
    """A planner that can be told how hard to try."""

    effort: str


def effort_of(planner: object) -> Effort:
    """How hard a planner tries; the default one of those that are not told."""
    return effort_named(getattr(planner, "effort", DEFAULT_EFFORT))


def with_effort(planner: Planner, effort: str) -> Planner:
    """The planner, told how hard to try. One that has no efforts stays as it is, with a warning.

    Raises:
        UnknownNameError: No effort has that name.
    """
    effort_named(effort)
    if not isinstance(planner, EffortPlanner):
        warnings.warn(
            f"planner {planner.name} knows no efforts: effort {effort} is ignored", stacklevel=2
        )
        return planner
    told = copy.copy(planner)
    told.effort = effort
    return told
