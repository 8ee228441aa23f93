"""How many receives a device asks for ahead of the one that it waits for."""

from __future__ import annotations

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.layer_costs.memory_rule import posted_ahead
from heterps_envs.schedule.actions import RECEIVE_BACKWARD, RECEIVE_FORWARD, Schedule
from heterps_envs.schedule.plan_arrays import PlanArrays


def received_bytes(schedule: Schedule, arrays: PlanArrays) -> tuple[Integers, Floats]:
    """(R,) the receives of all devices in their order, and the bytes of each."""
    receives = np.flatnonzero(schedule.kind <= RECEIVE_BACKWARD)
    stage, micro_batch = schedule.stage[receives], schedule.micro_batch[receives]
    front = arrays.front[arrays.pipeline_of[micro_batch], stage]
    cut = np.where(schedule.kind[receives] == RECEIVE_FORWARD, front, stage)
    return receives, arrays.share[micro_batch] * arrays.output_bytes[cut]


def receives_posted_ahead(schedule: Schedule, arrays: PlanArrays) -> Integers:
    """(D,) for each device, by the bytes of its largest message."""
    receives, num_bytes = received_bytes(schedule, arrays)
    largest = np.zeros(len(schedule.devices))
    np.maximum.at(largest, schedule.device_of[receives], num_bytes)
    return posted_ahead(largest)
