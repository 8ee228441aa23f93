"""How hard the learned placer tries: three named efforts, in one table."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from heterps_agents.interface.planner import Planner
from heterps_configs.errors import UnknownNameError


@dataclass(frozen=True)
class Effort:
    """What one decoding does, see `heterps_agents.learned.search`.

    Attributes:
        begins_with: Effort whose whole work comes first, in place of the first ladder; this one
            never gives a worse placement.
        first_width: Partial placements kept for each target of the first, coarse ladder.
        first_targets: Targets of that ladder.
        width: Partial placements kept for each target around the best placement.
        targets: Targets of a round around it; 0 for no such rounds.
        rounds: Such rounds at most; they end when one finds nothing better.
        descents: Placements of a round that are improved by small changes.
        elite: Placements of a round whose windows are chosen anew.
        window: Stages that are chosen anew together, exactly; 0 for none. Where the best placement
            has no more, the exact solver's sweep takes them all.
        window_tries: Stages tried in the windows of a placement, before a look whether that helps.
        price_width: Width of the beams for the objective price.
        price_targets: Targets of each set of device classes for that objective; of a policy that
            knows prices, lengths of the step at most.
        price_shares: Of such a policy, targets for each length.
        price_rounds: Rounds of such a policy around the best placement.
        exact_s: Predicted seconds up to which the planner `auto` prefers the exact solver. Eight
            device classes take a third of what is predicted.
        sweeps: Whether the exact solver may take all stages of a placement that has no more than a
            window; without, windows have one stage more at most than what they replace.
    """

    first_width: int
    first_targets: int
    width: int
    targets: int
    rounds: int
    descents: int
    elite: int
    window: int
    window_tries: int
    price_width: int
    price_targets: int
    price_shares: int
    price_rounds: int
    exact_s: float
    begins_with: str | None = None
    sweeps: bool = True


DEFAULT_EFFORT = "normal"
EFFORTS: Mapping[str, Effort] = MappingProxyType(
    {
        "fast": Effort(
            first_width=1, first_targets=12, width=1, targets=8, rounds=1, descents=4, elite=1,
            window=3, window_tries=100_000, price_width=1, price_targets=4, price_shares=4,
            price_rounds=1, exact_s=0.1,
        ),
        "normal": Effort(
            first_width=4, first_targets=8, width=16, targets=6, rounds=1, descents=6, elite=1,
            window=6, window_tries=100_000, price_width=8, price_targets=4, price_shares=2,
            price_rounds=1, exact_s=1.7,
        ),
        "high": Effort(
            first_width=4, first_targets=6, width=64, targets=6, rounds=2, descents=10, elite=2,
            window=8, window_tries=1_000_000, price_width=16, price_targets=8, price_shares=3,
            price_rounds=2, exact_s=10.0, begins_with="normal",
        ),
    }
)  # fmt: skip


def effort_named(name: str) -> Effort:
    """The effort called `name`.

    Raises:
        UnknownNameError: With near names.
    """
    if name not in EFFORTS:
        raise UnknownNameError("effort", name, tuple(EFFORTS))
    return EFFORTS[name]


@runtime_checkable
class EffortPlanner(Planner, Protocol):
    """A planner that can be told how hard to try."""

    effort: str


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
