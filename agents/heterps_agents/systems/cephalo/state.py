"""Shares of the training state: as even as the devices' memory allows (water-filling)."""

from __future__ import annotations

from collections.abc import Sequence


def water_filled(total: float, room: Sequence[float]) -> list[float] | None:
    """Parts that sum up to a total, each the same or all the room that there is.

    Of all parts within the room these have the smallest largest part. None: there is too little.

    Args:
        total: Bytes of the state.
        room: Bytes of each device, 0 or more.
    """
    if sum(room) < total:
        return None
    parts, left = [0.0] * len(room), total
    smallest_first = sorted(range(len(room)), key=lambda index: room[index])
    for place, index in enumerate(smallest_first):
        parts[index] = min(room[index], left / (len(room) - place))
        left -= parts[index]
    return parts
