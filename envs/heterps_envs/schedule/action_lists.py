"""From the order of every device's passes to its action list: where messages are sent and received.

A message is sent right after the pass that makes it. It is received right before the pass that
needs it, and before it, of the same direction, all that the same sender sent earlier.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Integers
from heterps_envs.compiled import helper, kernel
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


def action_lists(plan: PlanArrays, order: Integers, offsets: Integers) -> ActionLists:
    """Puts the messages between the passes.

    Args:
        plan: What runs.
        order: (K,) passes, device by device, as in `heterps_envs.schedule.kernels`.
        offsets: (D + 1,) where the passes of each device begin.
    """
    routes = plan.stage_device, plan.pipeline_of, plan.front, plan.behind
    return ActionLists(*_lists(order, offsets, *routes))


@kernel
def _lists(
    order: Any, offsets: Any, stage_device: Any, pipeline_of: Any, front: Any, behind: Any
) -> Any:
    """The arrays of `ActionLists`."""
    num_stages, num_micro_batches = len(stage_device), len(pipeline_of)
    target, needed_by = _needed(order, offsets, stage_device, pipeline_of, front, behind)
    receives = np.zeros(len(order), np.int64)
    for number in range(len(order)):
        if needed_by[number] >= 0:
            receives[needed_by[number]] += 1
    # Where the next receive in front of each pass stands, and the pass itself.
    next_receive, at_pass, size = receives.copy(), receives.copy(), 0
    starts = np.zeros(len(offsets), np.int64)
    for device in range(len(offsets) - 1):
        for number in range(offsets[device], offsets[device + 1]):
            next_receive[number], at_pass[number] = size, size + receives[number]
            size = at_pass[number] + (2 if needed_by[number] >= 0 else 1)
        starts[device + 1] = size
    kind, stage = np.empty(size, np.int8), np.empty(size, np.int32)
    micro_batch, peer = np.empty(size, np.int32), np.full(size, -1, np.int32)
    for device in range(len(offsets) - 1):
        for back in range(2):  # of one sender activations are received first, then gradients
            for number in range(offsets[device], offsets[device + 1]):
                code = order[number] // num_micro_batches
                m, own, what = (
                    order[number] % num_micro_batches,
                    code % num_stages,
                    code // num_stages,
                )
                if (what != 0) != (back == 1):
                    continue
                at = at_pass[number]
                kind[at], stage[at], micro_batch[at] = FORWARD + what, own, m
                if needed_by[number] < 0:
                    continue
                kind[at + 1], stage[at + 1] = SEND_FORWARD + back, own
                micro_batch[at + 1], peer[at + 1] = m, stage_device[target[number]]
                at = next_receive[needed_by[number]]
                next_receive[needed_by[number]] += 1
                kind[at], stage[at] = RECEIVE_FORWARD + back, target[number]
                micro_batch[at], peer[at] = m, device
    return starts, kind, stage, micro_batch, peer


@helper
def _needed(
    order: Any, offsets: Any, stage_device: Any, pipeline_of: Any, front: Any, behind: Any
) -> Any:
    """For each pass that sends, the stage that receives, and the pass that needs it; -1: none.

    That is the earliest of the passes that need this message or a later one of the same sender,
    receiver and direction.
    """
    num_stages, num_micro_batches = len(stage_device), len(pipeline_of)
    # Where the passes that need the messages stand.
    place = np.empty(4 * num_stages * num_micro_batches, np.int32)
    backward = 1
    for number in range(len(order)):
        place[order[number]] = number
        if order[number] // (num_stages * num_micro_batches) == BACKWARD_INPUT - FORWARD:
            backward = BACKWARD_INPUT - FORWARD
    target, needed_by = np.full(len(order), -1, np.int64), np.full(len(order), -1, np.int64)
    earliest = np.empty((len(offsets), 2), np.int64)
    for device in range(len(offsets) - 1):
        earliest[:] = len(order)
        for number in range(offsets[device + 1] - 1, offsets[device] - 1, -1):
            code = order[number] // num_micro_batches
            m, own, what = order[number] % num_micro_batches, code % num_stages, code // num_stages
            back = 0 if what == 0 else 1
            other = (front if back else behind)[pipeline_of[m], own]
            if what == BACKWARD_WEIGHT - FORWARD or other < 0 or stage_device[other] == device:
                continue
            needs = place[(back * backward * num_stages + other) * num_micro_batches + m]
            to = stage_device[other]
            earliest[to, back] = min(earliest[to, back], needs)
            target[number], needed_by[number] = other, earliest[to, back]
    return target, needed_by
