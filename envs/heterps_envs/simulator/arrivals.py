"""Arrivals: when a device knows that a message which it sent has been received."""

from __future__ import annotations

import numpy as np

from heterps_envs.arrays import Integers
from heterps_envs.schedule.actions import (
    RECEIVE_BACKWARD,
    RECEIVE_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    Schedule,
)


def confirmed_at(schedule: Schedule) -> Integers:
    """For each send, the action of its device that shows that it has arrived.

    That is the first receive of a message which the peer sends after it has received this one; the
    device's last action where there is none.

    Returns:
        (A,) indices of actions; -1 where the action is no send.
    """
    sends, receives = _matched(schedule)
    found = np.full(len(schedule.kind), -1, np.int64)
    if not len(sends):
        return found
    device, num_actions = schedule.device_of, len(schedule.kind)
    # Sends of one device to another, in the order of the sender's list.
    pair = device[sends] * len(schedule.devices) + schedule.peer[sends]
    order = np.lexsort((sends, pair))
    keys = pair[order] * num_actions + sends[order]
    back = schedule.peer[sends] * len(schedule.devices) + device[sends]
    answer = np.searchsorted(keys, back * num_actions + receives)
    inside = np.minimum(answer, len(keys) - 1)
    is_answered = (answer < len(keys)) & (pair[order][inside] == back)
    last = schedule.offsets[1:][device[sends]] - 1
    found[sends] = np.where(is_answered, receives[order[inside]], last)
    return found


def _matched(schedule: Schedule) -> tuple[Integers, Integers]:
    """All sends, and the receive of each: in each direction between two devices in one order."""

    def ordered(kinds: tuple[int, int], is_send: bool) -> Integers:
        index = np.flatnonzero(np.isin(schedule.kind, kinds))
        own, peer = schedule.device_of[index], schedule.peer[index]
        ends = (own, peer) if is_send else (peer, own)
        return index[np.lexsort((index, schedule.kind[index], ends[1], ends[0]))]

    sends = ordered((SEND_FORWARD, SEND_BACKWARD), True)
    receives = ordered((RECEIVE_FORWARD, RECEIVE_BACKWARD), False)
    assert len(sends) == len(receives)
    return sends, receives
