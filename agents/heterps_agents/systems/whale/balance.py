"""Whale's balance: loads in proportion to power, and what does not fit moves on.

`min sum_i |L_i / sum L - P_i / sum P|` such that device i has room for its load: loads begin in
proportion to power, rounded by largest remainders. While some device has no room for its load, a
unit of it moves to the device with room for one more whose load is smallest for its power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heterps_agents.systems.shares import in_proportion


def balanced(
    total: int, power: Sequence[float], has_room: Callable[[int, int], bool]
) -> list[int] | None:
    """Loads in proportion to power as far as there is room; None where there is none for all.

    Args:
        total: Units of load.
        power: Of each device, positive.
        has_room: Whether a device, by its index, has room for so many units; for fewer, too.
    """
    loads = in_proportion(total, power)
    for index in range(len(loads)):
        while not has_room(index, loads[index]):
            if loads[index] == 0:
                return None
            others = [
                other
                for other, load in enumerate(loads)
                if other != index and has_room(other, load + 1)
            ]
            if not others:
                return None
            to = min(others, key=lambda other: loads[other] / power[other])
            loads[index] -= 1
            loads[to] += 1
    return loads
