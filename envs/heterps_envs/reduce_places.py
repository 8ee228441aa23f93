"""Where the gradient all-reduces and the optimizer step stand in the action lists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heterps_configs.plan import Plan
from heterps_envs.actions import BACKWARD, BACKWARD_WEIGHT, REDUCE, STEP, ReduceBucket, Schedule


def with_reduces(plan: Plan, schedule: Schedule, overlaps_reduce: bool) -> Schedule:
    """Adds the all-reduces of `Schedule.buckets`, and at the end of each list the optimizer step.

    Args:
        plan: What runs.
        schedule: Lists without them.
        overlaps_reduce: Each all-reduce stands behind the last pass that adds to its gradients
            instead of behind all passes. On every device they keep one global order: that in which
            their gradients are complete, by the length of the list before that.
    """
    devices = {name: index for index, name in enumerate(schedule.devices)}
    first, stop = schedule.offsets[:-1], schedule.offsets[1:]
    places = {
        number: {
            devices[name]: _complete_at(plan, schedule, bucket, name)
            if overlaps_reduce
            else int(stop[devices[name]])
            for name in bucket.devices
        }
        for number, bucket in enumerate(schedule.buckets)
    }
    order = sorted(
        places, key=lambda number: max(at - first[device] for device, at in places[number].items())
    )
    at: list[int] = []
    bucket_at: list[int] = []
    earliest = first.tolist()
    for number in order if overlaps_reduce else places:
        for device, place in places[number].items():
            earliest[device] = max(earliest[device], place)
            at.append(earliest[device])
            bucket_at.append(number)
    kinds = [REDUCE] * len(at) + [STEP] * len(devices)
    at, bucket_at = at + stop.tolist(), bucket_at + [-1] * len(devices)
    added = np.bincount(np.searchsorted(stop, at), minlength=len(devices))
    return replace(
        schedule,
        offsets=schedule.offsets + np.concatenate([[0], np.cumsum(added)]),
        kind=np.insert(schedule.kind, at, kinds),
        stage=np.insert(schedule.stage, at, -1),
        micro_batch=np.insert(schedule.micro_batch, at, bucket_at),
        peer=np.insert(schedule.peer, at, -1),
        overlaps_reduce=overlaps_reduce,
    )


def _complete_at(plan: Plan, schedule: Schedule, bucket: ReduceBucket, name: str) -> int:
    """Index behind the last pass of a device that adds to the bucket's gradients."""
    device = schedule.devices.index(name)
    first, stop = schedule.offsets[device], schedule.offsets[device + 1]
    stages: NDArray[np.bool_] = np.array(
        [
            name in stage.devices and not set(bucket.layers).isdisjoint(stage.layers)
            for stage in plan.stages
        ]
    )
    kind, stage = schedule.kind[first:stop], schedule.stage[first:stop]
    adds = ((kind == BACKWARD) | (kind == BACKWARD_WEIGHT)) & stages[stage]
    return int(first + np.flatnonzero(adds)[-1] + 1) if adds.any() else int(stop)
