"""Memory of every device of tensor-parallel groups: one timeline for each rank that differs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterps_configs.documents.estimate import MemoryCurve
from heterps_envs.simulator.action_times import ActionTimes
from heterps_envs.simulator.memory_curves import memory_curves
from heterps_envs.simulator.memory_timeline import MemoryTimeline, memory_timeline
from heterps_envs.simulator.prepared import PreparedPlan

Groups = Sequence[tuple[str, ...]]


def timelines_by_rank(prepared: PreparedPlan) -> tuple[MemoryTimeline, ...]:
    """What devices of each rank hold; one for all, where all groups divide evenly, of like devices.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    uneven = [
        stage.degree
        for stage in prepared.arrays.ways
        if prepared.problem.differs_by_rank(stage) or prepared.problem.has_unlike_devices(stage)
    ]
    if not uneven:
        return (memory_timeline(prepared),)
    return tuple(memory_timeline(prepared, rank) for rank in range(max(uneven)))


def peak_memory_bytes(timelines: Sequence[MemoryTimeline], groups: Groups) -> dict[str, int]:
    """The most that each device holds, rounded up.

    Args:
        timelines: From `timelines_by_rank`.
        groups: `Plan.device_groups`.
    """
    return {
        name: math.ceil(_of_rank(timelines, rank).peak_bytes[index])
        for index, group in enumerate(groups)
        for rank, name in enumerate(group)
    }


def curves_of_devices(
    timelines: Sequence[MemoryTimeline], times: ActionTimes
) -> tuple[MemoryCurve, ...]:
    """The memory curve of every device.

    Args:
        timelines: From `timelines_by_rank`.
        times: When the plan's actions begin and end.
    """
    by_rank = [memory_curves(timeline, times) for timeline in timelines]
    return tuple(
        by_rank[min(rank, len(by_rank) - 1)][index].changed(device=name)
        if rank or len(by_rank) > 1
        else by_rank[0][index]
        for index, group in enumerate(times.groups)
        for rank, name in enumerate(group)
    )


def _of_rank(timelines: Sequence[MemoryTimeline], rank: int) -> MemoryTimeline:
    return timelines[min(rank, len(timelines) - 1)]
