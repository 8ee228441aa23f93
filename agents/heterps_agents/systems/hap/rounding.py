"""From shares to whole units: heads, columns, experts, samples."""

from __future__ import annotations

from collections.abc import Sequence


def rounded_shares(shares: Sequence[float], units: int) -> tuple[int, ...]:
    """Whole units of each device: rounded down, then one more to whoever lacks most.

    Of several that lack as much, the last one gets it. A single unit cannot be shared: every device
    has it. Some may have none. Source: `sharding_round` of HAP's code.

    Args:
        shares: Of the devices; they sum to 1.
        units: To share.
    """
    if units == 1:
        return (1,) * len(shares)
    found = [int(share * units) for share in shares]
    while sum(found) < units:
        lacking = [share - count / units for share, count in zip(shares, found, strict=True)]
        most = max(lacking)
        found[max(index for index, value in enumerate(lacking) if value == most)] += 1
    return tuple(found)


def at_least_one(shares: Sequence[float], units: int) -> tuple[int, ...] | None:
    """The same with a unit at least for each, taken from whoever has most; None: too few units."""
    if units < len(shares):
        return None
    found = list(rounded_shares(shares, units)) if units > 1 else [1]
    while 0 in found:
        found[found.index(max(found))] -= 1
        found[found.index(0)] += 1
    return tuple(found)
