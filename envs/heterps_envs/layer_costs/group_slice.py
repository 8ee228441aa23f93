"""A device's place in a tensor-parallel group, and how many whole units of a layer it gets."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from math import floor
from typing import NamedTuple

from heterps_configs.documents.stage import Stage

Ranges = tuple[tuple[int, int], ...]


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

    def units(self, num_units: int, key_value_heads: int = 0) -> tuple[int, int]:
        """First unit of the rank, and the one behind its last.

        Args:
            num_units: Of all ranks.
            key_value_heads: Of units that are query heads, the heads of keys and values that they
                share; 0 where each has its own.
        """
        return dealt_ranges(num_units, key_value_heads, self.shares)[self.rank]

    def fraction(self, num_units: int, key_value_heads: int = 0) -> Fraction:
        """The rank's whole units, of all."""
        start, stop = self.units(num_units, key_value_heads)
        return Fraction(stop - start, num_units)


# Which part of what a group splits a device has: whole units of each layer, or where a number
# alone is known, exactly that part; None: an equal part, of unequal ones the largest.
Share = GroupSlice | float | None


def fraction_of(share: Share, degree: int, num_units: int, key_value_heads: int = 0) -> Fraction:
    """Of what divides into so many units, the part of a device of a group of `degree`."""
    if share is None and key_value_heads:
        share = GroupSlice(0, (1 / degree,) * degree)
    if share is None:
        return Fraction(-(-num_units // degree), num_units)
    if isinstance(share, GroupSlice):
        return share.fraction(num_units, key_value_heads)
    return Fraction(share)


def key_value_fraction_of(
    share: Share, degree: int, num_heads: int, key_value_heads: int
) -> Fraction:
    """Of keys and values, the part of a device: all heads that its queries use."""
    if isinstance(share, float):
        return max(Fraction(share), Fraction(1, key_value_heads))
    slice_ = share or GroupSlice(0, (1 / degree,) * degree)
    start, stop = used_key_values(
        slice_.units(num_heads, key_value_heads), num_heads, key_value_heads
    )
    return Fraction(stop - start, key_value_heads)


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
def unit_ranges(num_units: int, shares: tuple[float, ...]) -> Ranges:
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


def dealt_ranges(num_units: int, key_value_heads: int, shares: tuple[float, ...]) -> Ranges:
    """Start and stop of each rank's units, whatever they are.

    Args:
        num_units: At least as many as there are ranks.
        key_value_heads: See `query_head_ranges`; 0 where each unit is for itself.
        shares: Of each rank.
    """
    if key_value_heads:
        return query_head_ranges(num_units, key_value_heads, shares)
    return unit_ranges(num_units, shares)


def used_key_values(
    heads: tuple[int, int], num_heads: int, key_value_heads: int
) -> tuple[int, int]:
    """First head of keys and values that some query heads use, and the one behind the last."""
    queries = num_heads // key_value_heads
    return heads[0] // queries, -(-heads[1] // queries)


@lru_cache(maxsize=4096)
def query_head_ranges(num_heads: int, key_value_heads: int, shares: tuple[float, ...]) -> Ranges:
    """Start and stop of each rank's query heads, which share heads of keys and values.

    Each rank has all queries of some heads of keys and values, or some queries of one: so the
    queries of a rank use each of its heads equally often, and what two ranks have of keys and
    values is the same, or nothing. Ranks share a head with those beside them in one of three
    orders: as they are, by their shares, largest and smallest in turns. The one is taken that comes
    nearest to the shares. A rank with a larger share has no less than others.

    Args:
        num_heads: At least as many as there are ranks.
        key_value_heads: They divide these.
        shares: Of each rank.
    """
    queries = num_heads // key_value_heads
    if key_value_heads >= len(shares):
        whole = unit_ranges(key_value_heads, shares)
        return tuple((start * queries, stop * queries) for start, stop in whole)
    by_share = sorted(range(len(shares)), key=lambda rank: -shares[rank])
    wanted = [shares[rank] / sum(shares) * num_heads for rank in by_share]
    turns = [rank for pair in zip(by_share, reversed(by_share), strict=True) for rank in pair]
    found = []
    for order in (range(len(shares)), by_share, turns[: len(shares)]):
        parts = _parts(key_value_heads, queries, tuple(shares[rank] for rank in order))
        parts = tuple(sorted(parts, key=lambda part: part[0] - part[1]))
        pairs = zip(parts, wanted, strict=True)
        found.append((sum((part[1] - part[0] - wish) ** 2 for part, wish in pairs), parts))
    _, parts = min(found, key=lambda each: each[0])
    ranges = dict(zip(by_share, parts, strict=True))
    return tuple(ranges[rank] for rank in range(len(shares)))


def _parts(key_value_heads: int, queries: int, shares: tuple[float, ...]) -> Ranges:
    """Parts for ranks, of which neighbours share heads of keys and values: the nearest to shares.

    Args:
        key_value_heads: Fewer than ranks.
        queries: Of each of them.
        shares: Of each rank, in some order.
    """
    wanted = [share / sum(shares) * key_value_heads * queries for share in shares]
    # By ranks and heads of keys and values that are dealt: how far from what is wanted, and counts.
    best: dict[tuple[int, int], tuple[float, tuple[tuple[int, ...], ...]]] = {(0, 0): (0.0, ())}
    for done in range(key_value_heads):
        for first in range(len(shares)):
            if (first, done) not in best:
                continue
            so_far, counts = best[first, done]
            alone = [(1, heads) for heads in range(1, key_value_heads - done + 1)]
            together = [(ranks, 1) for ranks in range(2, min(queries, len(shares) - first) + 1)]
            for ranks, heads in alone + together:
                own = unit_ranges(heads * queries, shares[first : first + ranks])
                block = tuple(stop - start for start, stop in own)
                pairs = zip(block, wanted[first : first + ranks], strict=True)
                cost = so_far + sum((count - wish) ** 2 for count, wish in pairs)
                at = first + ranks, done + heads
                if at not in best or cost < best[at][0] - 1e-9:
                    best[at] = cost, (*counts, block)
    _, blocks = best[len(shares), key_value_heads]
    ends = list(accumulate((count for block in blocks for count in block), initial=0))
    return tuple(pairwise(ends))
