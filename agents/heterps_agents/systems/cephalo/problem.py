"""Our problems as Cephalo's cases: lines through our layer times, collectives, what is held."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from heterps_agents.systems.cephalo.batches import Case
from heterps_agents.systems.cephalo.cost import Collectives, DeviceTimes, Line
from heterps_envs.arrays import Floats
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import StageOption, option_tables
from heterps_envs.problem import Problem

# Lines go through the seconds at the job's size of micro-batches, and at so many times that.
_FURTHER_SIZE = 4


def case_of(problem: Problem) -> Case:
    """All devices, with micro-batches of the job's size."""
    job, names = problem.job, list(problem.device_named)
    times = _times_of_classes(problem)
    tables = recomputing_tables(problem)
    kept = float(tables.stage_options.activation_bytes[:, 0].sum())
    return Case(
        times=[times[problem.class_of[name]] for name in names],
        memory_bytes=[float(problem.device_named[name].memory_bytes) for name in names],
        collectives=collectives_of(problem, names),
        num_samples=job.num_micro_batches * job.micro_batch_size,
        sizes=(job.micro_batch_size,),
        state_bytes=float(problem.tables.state_bytes.sum()),
        sample_bytes=kept / job.micro_batch_size,
        # Our seconds of a pass are all that a micro-batch takes.
        further_s=0.0,
    )


def recomputing_tables(problem: Problem) -> CostTables:
    """With an option for each class: activations computed again, optimizer state sharded."""
    options = (
        StageOption(kind, memory="recompute", shards_state=True)
        for kind in range(len(problem.classes))
    )
    return option_tables(problem, tuple(options))


def most_counts(problem: Problem, holders: Collection[str]) -> list[int]:
    """Micro-batches that each device has room for, by the memory rule of planners.

    Args:
        problem: The problem.
        holders: Devices that hold the model: they share its optimizer state evenly, and have its
            weights and gradients whole. Others take none.
    """
    tables, num = recomputing_tables(problem), problem.job.num_micro_batches
    options = tables.stage_options
    state = (options.state_bytes + options.sharded_bytes / max(len(holders), 1)).sum(axis=0)
    kept = np.maximum(options.activation_bytes.sum(axis=0), 1e-9)
    fit = np.floor((tables.memory_bytes - state) / kept + 1e-9).clip(0, num).astype(int)
    found = []
    for name in problem.device_named:
        room = int(fit[problem.class_of[name]]) if name in holders else 0
        # Alone in its pipeline a device has one in flight, but for GPipe.
        found.append(room if tables.is_gpipe else num * (room > 0))
    return found


def collectives_of(problem: Problem, names: Sequence[str]) -> Collectives:
    """Over a ring of some devices; its slowest link decides."""
    count = len(names)
    latency_s, s_per_byte = problem.slowest_link(pairwise([*names, names[0]]))
    weights = problem.parameters * problem.job.weight_bytes_per_parameter

    def seconds(num_bytes: Floats) -> Floats:
        return (count - 1) * (latency_s + num_bytes / count * s_per_byte)

    return Collectives(seconds(weights), seconds(weights), seconds(problem.gradient_bytes))


def _times_of_classes(problem: Problem) -> list[DeviceTimes]:
    size = problem.job.micro_batch_size
    small, large = (_at_size(problem, each) for each in (size, _FURTHER_SIZE * size))
    forward, backward = (
        [
            _line(size, few[:, kind], many[:, kind])
            for kind in range(len(problem.classes))
        ]
        for few, many in zip(small, large, strict=True)
    )  # fmt: skip
    return [DeviceTimes(*lines) for lines in zip(forward, backward, strict=True)]


def _at_size(problem: Problem, size: int) -> tuple[Floats, Floats]:
    """(L, T) seconds of the forward and of the backward pass of so many samples."""
    job = problem.job.changed(
        global_batch_size=size, micro_batch_size=size, unequal_micro_batch_sizes=None
    )
    times = replace(problem, job=job).layer_times
    return times.forward_s, times.backward_s


def _line(size: int, few_s: Floats, many_s: Floats) -> Line:
    slope = np.maximum((many_s - few_s) / ((_FURTHER_SIZE - 1) * size), 0.0)
    return Line(slope, few_s - slope * size)
