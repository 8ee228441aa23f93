"""Which step a new generation goes on from, by what its ranks hold and can read.

Every rank answers alike from what all of them have said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heterps_runtime.state.layout import VALUE, Layouts
from heterps_runtime.state.migrate import Wanted, known_tensors
from heterps_runtime.state.transfer import Cell, wanted_cells


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


def live_step(holdings: Sequence[Holding]) -> tuple[int, Needed] | None:
    """The newest step of which the ranks hold all that any of them wants."""
    steps = {holding.step for holding in holdings if holding.step is not None}
    for step in sorted(steps, reverse=True):
        needed = Needed.of(holdings, [[layouts_at(holding, step) for holding in holdings]])
        if not any(needed.missing):
            return step, needed
    return None


def layouts_at(holding: Holding, step: int) -> Layouts:
    """What a rank holds of one step."""
    return holding.layouts if holding.step == step else {}


def newest_step(
    holdings: Sequence[Holding], gathered: Sequence[SavedNames]
) -> tuple[int, Needed] | None:
    """The newest step at which each tensor has a source for each rank that wants it."""
    steps = {step for saved in gathered for step in (*saved.snapshots, *saved.readable)}
    for step in sorted(steps, reverse=True):
        offers = [
            [layouts_at(holding, step) for holding in holdings],
            [saved.snapshots.get(step, {}) for saved in gathered],
        ]
        needed = Needed.of(holdings, offers)
        if all(
            names <= saved.readable.get(step, frozenset())
            for names, saved in zip(needed.missing, gathered, strict=True)
        ):
            return step, needed
    return None


class Needed(NamedTuple):
    """What all ranks want, of what there is at one step.

    Attributes:
        targets: By rank.
        cells: Of all of them.
        missing: By rank, the names of which no rank has some part that it wants.
    """

    targets: list[Layouts]
    cells: list[Cell]
    missing: list[frozenset[str]]

    @classmethod
    def of(cls, holdings: Sequence[Holding], offers: Sequence[Sequence[Layouts]]) -> Needed:
        """From what ranks want, and have; the nearest offer first."""
        known = known_tensors(layouts for own in offers for layouts in own)
        targets = [holding.wanted.layouts(known) for holding in holdings]
        cells = list(wanted_cells(offers, targets))
        # Replicas that share state may have that of a parameter, and the lost one had its value.
        there = {name for name, keys in known.items() if VALUE in keys}
        missing = [set(holding.wanted.names - there) for holding in holdings]
        for cell in cells:
            if cell.offer is None:
                missing[cell.destination].add(cell.name)
        return cls(targets, cells, [frozenset(names) for names in missing])


def nothing_left(gathered: Sequence[SavedNames]) -> str:
    """Why there is no such step."""
    steps = sorted({step for saved in gathered for step in (*saved.snapshots, *saved.readable)})
    if not steps:
        return "the state of the lost devices cannot be recovered: there is no checkpoint"
    return (
        "the state of the lost devices cannot be recovered: no checkpoint is whole (there are some "
        f"after steps {', '.join(map(str, steps))})"
    )
