"""A device's place in a tensor-parallel group, and how many whole units of a layer it gets."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import NamedTuple

from heterps_configs.documents.plan import Stage


class GroupSlice(NamedTuple):
    """A rank's place in its group.

    Attributes:
        rank: Position in the group.
        shares: Of each rank; they sum to 1.
    """

    rank: int
    shares: tuple[float, ...]

    @property
    def degree(self) -> int:
        """Ranks of the group."""
        return len(self.shares)

    def fraction(self, num_units: int) -> Fraction:
        """The rank's whole units, of all."""
        start, stop = unit_ranges(num_units, self.shares)[self.rank]
        return Fraction(stop - start, num_units)


# Which part of what a group splits a device has: whole units of each layer, or where a number
# alone is known, exactly that part; None: an equal part, of unequal ones the largest.
Share = GroupSlice | float | None


def fraction_of(share: Share, degree: int, num_units: int) -> Fraction:
    """Of what divides into so many units, the part of a device of a group of `degree`."""
    if share is None:
        return Fraction(-(-num_units // degree), num_units)
    return share.fraction(num_units) if isinstance(share, GroupSlice) else Fraction(share)


def slice_of(stage: Stage, rank: int | None, is_uneven: bool) -> GroupSlice | None:
    """The part of one device of a stage; None: all have the same, or of equal shares the largest.

    Args:
        stage: The stage.
        rank: Of the device; by default one with the largest part.
        is_uneven: Whether parts are unlike, because of shares or of units that do not divide.
    """
    if stage.uneven_shares:
        largest = largest_slice(stage.uneven_shares)
        return largest if rank is None else largest._replace(rank=rank)
    if not rank or not is_uneven:
        return None
    return GroupSlice(rank, (1 / stage.degree,) * stage.degree)


def largest_slice(shares: Sequence[float]) -> GroupSlice:
    """The rank that no other has more units than, whatever their number."""
    return GroupSlice(max(range(len(shares)), key=lambda rank: shares[rank]), tuple(shares))


@lru_cache(maxsize=4096)
def unit_ranges(num_units: int, shares: tuple[float, ...]) -> tuple[tuple[int, int], ...]:
    """Start and stop of each rank's units: whole ones by largest remainder, at least one each.

    Args:
        num_units: At least as many as there are ranks.
        shares: Of each rank.
    """
    assert num_units >= len(shares)
    total = sum(shares)
    wanted = [share / total * num_units for share in shares]
    # Equal shares of a number that divides are whole, whatever the rounding of their sum.
    counts = [max(1, floor(each + 1e-9)) for each in wanted]
    while (missing := num_units - sum(counts)) != 0:
        step = 1 if missing > 0 else -1
        able = [rank for rank, count in enumerate(counts) if step > 0 or count > 1]
        # The first of those that lack (or exceed) most.
        chosen = max(able, key=lambda rank: (step * (wanted[rank] - counts[rank]), -rank))
        counts[chosen] += step
    ranges, start = [], 0
    for count in counts:
        ranges.append((start, start + count))
        start += count
    return tuple(ranges)
