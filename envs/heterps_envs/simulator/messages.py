"""Messages of the action lists: which send belongs to which receive, how large, when known."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import kernel
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
    partner, num_bytes = np.full(len(kind), -1, np.int64), np.empty(len(receives))
    largest = np.zeros(len(schedule.devices))
    is_matched = _match(
        sends,
        receives,
        kind,
        schedule.stage,
        schedule.micro_batch,
        schedule.peer,
        schedule.offsets,
        (arrays.pipeline_of, arrays.front, arrays.behind, arrays.share, arrays.output_bytes),
        partner,
        num_bytes,
        largest,
    )
    assert is_matched, "received in another order"
    return Messages(sends, receives, num_bytes, partner, posted_ahead(largest))


@kernel
def _match(
    sends: Any, receives: Any, kind: Any, stage: Any, micro_batch: Any, peer: Any, offsets: Any,
    plan: Any, partner: Any, num_bytes: Any, largest: Any,
) -> bool:  # fmt: skip
    """Finds the receive of each send, and the bytes; whether messages are received as sent.

    The nth send and receive of a direction between two devices belong together.
    """
    pipeline_of, front, behind, share, output_bytes = plan
    found = np.empty((2, front.shape[1], len(pipeline_of)), np.int32)
    device = 0
    for row in range(len(receives)):
        at = receives[row]
        m, own = micro_batch[at], stage[at]
        while offsets[device + 1] <= at:
            device += 1
        cut = front[pipeline_of[m], own] if kind[at] == RECEIVE_FORWARD else own
        num_bytes[row] = share[m] * output_bytes[cut]
        largest[device] = max(largest[device], num_bytes[row])
        found[kind[at] - RECEIVE_FORWARD, own, m] = at
    in_front = np.empty((2, len(offsets)), np.int64)
    device = -1
    for send in sends:
        if device < 0 or send >= offsets[device + 1]:
            in_front[:] = -1
        while send >= offsets[device + 1]:
            device += 1
        m, back = micro_batch[send], kind[send] - SEND_FORWARD
        other = front[pipeline_of[m], stage[send]] if back else behind[pipeline_of[m], stage[send]]
        receive = found[back, other, m]
        if receive < in_front[back, peer[send]]:
            return False
        partner[send], partner[receive], in_front[back, peer[send]] = receive, send, receive
    return True


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
