"""Messages of the action lists: which send belongs to which receive, how large, when known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.layer_costs.memory_rule import posted_ahead
from heterps_envs.schedule.actions import (
    RECEIVE_BACKWARD,
    RECEIVE_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    Schedule,
)
from heterps_envs.schedule.plan_arrays import PlanArrays


class Messages(NamedTuple):
    """R messages of A actions of D devices.

    Attributes:
        sends: (R,) actions, in the order of the lists.
        receives: (R,) actions, in the order of the lists.
        received_bytes: (R,) of each receive.
        partner: (A,) receives of sends and sends of receives; -1 for all other actions.
        posted_ahead: (D,) for how many receives a device asks ahead of the one that it waits for,
            by the bytes of its largest message.
    """

    sends: Integers
    receives: Integers
    received_bytes: Floats
    partner: Integers
    posted_ahead: Integers


def messages(schedule: Schedule, arrays: PlanArrays) -> Messages:
    """The messages of a plan's action lists.

    Args:
        schedule: The action lists.
        arrays: `plan_arrays` of the plan.
    """
    kind = schedule.kind
    sends = np.flatnonzero((kind == SEND_FORWARD) | (kind == SEND_BACKWARD))
    receives = np.flatnonzero(kind <= RECEIVE_BACKWARD)
    stage, micro_batch = schedule.stage[receives], schedule.micro_batch[receives]
    front = arrays.front[arrays.pipeline_of[micro_batch], stage]
    cut = np.where(kind[receives] == RECEIVE_FORWARD, front, stage)
    num_bytes = arrays.share[micro_batch] * arrays.output_bytes[cut]
    largest = np.zeros(len(schedule.devices))
    np.maximum.at(largest, schedule.device_of[receives], num_bytes)
    partner = _partners(schedule, sends, receives)
    return Messages(sends, receives, num_bytes, partner, posted_ahead(largest))


def _partners(schedule: Schedule, sends: Integers, receives: Integers) -> Integers:
    """(A,) the nth send and receive of a direction between two devices belong together."""
    own, peer = schedule.device_of, schedule.peer.astype(np.int64)
    num_devices = len(schedule.devices)
    is_back_sent = schedule.kind[sends] == SEND_BACKWARD
    is_back_received = schedule.kind[receives] == RECEIVE_BACKWARD
    sent = (own[sends] * num_devices + peer[sends]) * 2 + is_back_sent
    received = (peer[receives] * num_devices + own[receives]) * 2 + is_back_received
    sends = sends[np.argsort(sent, kind="stable")]
    receives = receives[np.argsort(received, kind="stable")]
    micro_batch = schedule.micro_batch
    assert np.array_equal(micro_batch[sends], micro_batch[receives]), "received in another order"
    partner = np.full(len(schedule.kind), -1, np.int64)
    partner[sends], partner[receives] = receives, sends
    return partner


def confirmed_at(schedule: Schedule, found: Messages) -> Integers:
    """For each send, the action of its device that shows that it has arrived.

    That is the first receive of a message which the peer sends after it has received this one; the
    device's last action where there is none.

    Returns:
        (A,) indices of actions; -1 where the action is no send.
    """
    sends, receives = found.sends, found.partner[found.sends]
    confirmed = np.full(len(schedule.kind), -1, np.int64)
    if not len(sends):
        return confirmed
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
    confirmed[sends] = np.where(is_answered, receives[order[inside]], last)
    return confirmed
