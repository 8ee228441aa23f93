"""Which step a new generation goes on from, by what its ranks hold and can read.

Every rank answers alike from what all of them have said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heterps_runtime.state.layout import Layouts
from heterps_runtime.state.migrate import Wanted


class Holding(NamedTuple):
    """What a rank says of itself first."""

    step: int | None
    layouts: Layouts
    wanted: Wanted


class SavedNames(NamedTuple):
    """What a rank says of its checkpoints.

    Attributes:
        snapshots: In its memory, by step.
        readable: By step, what it wants and can read or make by itself.
    """

    snapshots: dict[int, Layouts]
    readable: dict[int, frozenset[str]]


def live_step(holdings: Sequence[Holding]) -> int | None:
    """The newest step at which some rank holds each tensor that any rank wants."""
    wanted = frozenset(name for holding in holdings for name in holding.wanted.names)
    steps = {holding.step for holding in holdings if holding.step is not None}
    for step in sorted(steps, reverse=True):
        if all(_is_live(name, step, holdings) for name in wanted):
            return step
    return None


def _is_live(name: str, step: int, holdings: Sequence[Holding]) -> bool:
    return any(holding.step == step and name in holding.layouts for holding in holdings)


def layouts_at(holding: Holding, step: int) -> Layouts:
    """What a rank holds of one step."""
    return holding.layouts if holding.step == step else {}


def newest_step(holdings: Sequence[Holding], gathered: Sequence[SavedNames]) -> int | None:
    """The newest step at which each tensor has a source for each rank that wants it."""
    steps = {step for saved in gathered for step in (*saved.snapshots, *saved.readable)}
    for step in sorted(steps, reverse=True):
        shared = {name for holding in holdings for name in layouts_at(holding, step)}
        shared.update(name for saved in gathered for name in saved.snapshots.get(step, {}))
        if all(
            holding.wanted.names <= shared | saved.readable.get(step, frozenset())
            for holding, saved in zip(holdings, gathered, strict=True)
        ):
            return step
    return None


def nothing_left(gathered: Sequence[SavedNames]) -> str:
    """Why there is no such step."""
    steps = sorted({step for saved in gathered for step in (*saved.snapshots, *saved.readable)})
    if not steps:
        return "the state of the lost devices cannot be recovered: there is no checkpoint"
    return (
        "the state of the lost devices cannot be recovered: no checkpoint is whole (there are some "
        f"after steps {', '.join(map(str, steps))})"
    )
