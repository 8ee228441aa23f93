"""From the order of every device's passes to its action list: where messages are sent and received.

A message is sent right after the pass that makes it. It is received right before the pass that
needs it, and before it, of the same direction, all that the same sender sent earlier.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Integers
from heterps_envs.schedule.actions import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    RECEIVE_FORWARD,
    SEND_FORWARD,
)
from heterps_envs.schedule.plan_arrays import PlanArrays


class ActionLists(NamedTuple):
    """Passes and messages, as the arrays of `heterps_envs.schedule.actions.Schedule`."""

    offsets: Integers
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    peer: NDArray[np.int32]


class _Messages(NamedTuple):
    """N messages by channel, that is sender, receiver and direction, in the order of sending."""

    sent_by: Integers  # (N,) index of the pass in the order
    needed_by: Integers  # (N,) the same of the pass before which the message is received
    source: Integers  # (N,) stage that sends
    target: Integers  # (N,) stage that receives
    micro_batch: Integers
    is_backward: NDArray[np.bool_]


def action_lists(plan: PlanArrays, order: Integers, offsets: Integers) -> ActionLists:
    """Puts the messages between the passes.

    Args:
        plan: What runs.
        order: (K,) passes, device by device, as in `heterps_envs.schedule.kernels`.
        offsets: (D + 1,) where the passes of each device begin.
    """
    num_stages, num_micro_batches = len(plan.stage_device), len(plan.share)
    micro_batch, rest = order % num_micro_batches, order // num_micro_batches
    stage, kind = rest % num_stages, FORWARD + rest // num_stages
    messages = _messages(plan, order, kind, stage, micro_batch)
    sends, receives = (
        np.bincount(messages.sent_by, minlength=len(order)),
        np.bincount(messages.needed_by, minlength=len(order)),
    )
    behind = np.cumsum(receives + 1 + sends)  # index behind all that belongs to a pass
    at_pass = behind - sends - 1
    at_send = at_pass[messages.sent_by] + 1
    in_turn = np.argsort(messages.needed_by, kind="stable")
    at_receive = np.empty_like(in_turn)
    at_receive[in_turn] = np.arange(len(in_turn)) + messages.needed_by[in_turn]
    at_receive += np.concatenate([[0], np.cumsum(sends)])[messages.needed_by]
    lists = ActionLists(
        offsets=np.concatenate([[0], behind])[offsets],
        kind=np.empty(len(order) + 2 * len(at_send), np.int8),
        stage=np.empty(len(order) + 2 * len(at_send), np.int32),
        micro_batch=np.empty(len(order) + 2 * len(at_send), np.int32),
        peer=np.full(len(order) + 2 * len(at_send), -1, np.int32),
    )
    lists.kind[at_pass], lists.stage[at_pass] = kind, stage
    lists.micro_batch[at_pass] = micro_batch
    for at, first, own, other in (
        (at_send, SEND_FORWARD, messages.source, messages.target),
        (at_receive, RECEIVE_FORWARD, messages.target, messages.source),
    ):
        lists.kind[at], lists.stage[at] = first + messages.is_backward, own
        lists.micro_batch[at], lists.peer[at] = messages.micro_batch, plan.stage_device[other]
    return lists


def _messages(
    plan: PlanArrays, order: Integers, kind: Integers, stage: Integers, micro_batch: Integers
) -> _Messages:
    num_stages, num_micro_batches = len(plan.stage_device), len(plan.share)
    is_back = kind != FORWARD
    pipeline = plan.pipeline_of[micro_batch]
    target = np.where(is_back, plan.front[pipeline, stage], plan.behind[pipeline, stage])
    source_device, target_device = plan.stage_device[stage], plan.stage_device[target]
    sent = np.flatnonzero(
        (target >= 0) & (target_device != source_device) & (kind != BACKWARD_WEIGHT)
    )
    channel = (source_device * len(plan.action_s) + target_device) * 2 + is_back
    sent = sent[np.argsort(channel[sent], kind="stable")]
    # Where the passes that need the messages stand.
    place = np.empty(4 * num_stages * num_micro_batches, np.int64)
    place[order] = np.arange(len(order))
    backward = BACKWARD_INPUT - FORWARD if (kind == BACKWARD_INPUT).any() else 1
    code = (is_back[sent] * backward * num_stages + target[sent]) * num_micro_batches
    needed_by = place[code + micro_batch[sent]]
    # The earliest of the passes that need this message or a later one of its channel.
    apart = np.cumsum(np.diff(channel[sent], prepend=channel[sent][:1]) != 0) * len(order)
    needed_by = np.minimum.accumulate((needed_by + apart)[::-1])[::-1] - apart
    return _Messages(sent, needed_by, stage[sent], target[sent], micro_batch[sent], is_back[sent])
