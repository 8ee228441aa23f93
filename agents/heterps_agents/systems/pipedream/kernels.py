"""Kernels of the hierarchical pipeline: one level of machines over pairs of ideals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_agents.splits.contiguous_kernels import contains
from heterps_agents.splits.ideals import IdealTables, Words
from heterps_envs.arrays import Floats
from heterps_envs.compiled import checked


@checked
def contained(words: Words) -> NDArray[np.bool_]:
    """(I, I) whether the later ideal holds the earlier one and more: [earlier, later]."""
    count = len(words)
    holds = np.zeros((count, count), dtype=np.bool_)
    for smaller in range(count):
        for larger in range(smaller + 1, count):
            holds[smaller, larger] = contains(words, larger, smaller)
    return holds


@checked
def split_level(
    unit_s: Floats,
    parameter_bytes: Floats,
    holds: NDArray[np.bool_],
    num_starts: int,
    num_units: int,
    most_replicas: int,
    first_sync_s: Floats,
    sync_s: Floats,
) -> tuple[Floats, NDArray[np.int32], NDArray[np.int32]]:
    """Least slowest stage between two ideals for every number of units.

    A stage on r units takes `(unit_s + sync[r] * parameter bytes) / r`.

    Args:
        unit_s: (I, I) seconds of the groups between two ideals on one unit; inf: impossible.
        parameter_bytes: (I,) of each ideal.
        holds: See `contained`.
        num_starts: Only pipelines that start at one of the first so many ideals.
        num_units: Units of the level.
        most_replicas: Of one stage.
        first_sync_s: (num_units + 1,) seconds for each byte, of the first stage.
        sync_s: The same of later stages.

    Returns:
        (num_starts, I, num_units + 1) seconds with at most so many units; the ideal before the
        last stage (-1: it is the only stage), and the units of the last stage.
    """
    count = len(parameter_bytes)
    value = np.full((num_starts, count, num_units + 1), np.inf)
    before = np.full((num_starts, count, num_units + 1), -1, dtype=np.int32)
    replicas = np.zeros((num_starts, count, num_units + 1), dtype=np.int32)
    for start in range(num_starts):
        best = value[start]
        for end in range(start + 1, count):
            if not holds[start, end]:
                continue
            size = parameter_bytes[end] - parameter_bytes[start]
            for units in range(1, num_units + 1):
                if best[end, units - 1] < best[end, units]:
                    best[end, units] = best[end, units - 1]
                    before[start, end, units] = before[start, end, units - 1]
                    replicas[start, end, units] = replicas[start, end, units - 1]
                if units <= most_replicas:
                    alone_s = (unit_s[start, end] + first_sync_s[units] * size) / units
                    if alone_s < best[end, units]:
                        best[end, units] = alone_s
                        before[start, end, units] = -1
                        replicas[start, end, units] = units
            for cut in range(start + 1, end):
                if not (holds[start, cut] and holds[cut, end]):
                    continue
                size = parameter_bytes[end] - parameter_bytes[cut]
                for width in range(1, min(most_replicas, num_units - 1) + 1):
                    last_s = (unit_s[cut, end] + sync_s[width] * size) / width
                    for units in range(width + 1, num_units + 1):
                        slowest_s = max(best[cut, units - width], last_s)
                        if slowest_s < best[end, units]:
                            best[end, units] = slowest_s
                            before[start, end, units] = cut
                            replicas[start, end, units] = width
    return value, before, replicas


@checked
def split_only_level(
    tables: IdealTables,
    num_units: int,
    machine: int,
    most_replicas: int,
    sync_s: Floats,
    upper_s: float,
) -> tuple[Floats, NDArray[np.int32], NDArray[np.int32]]:
    """`split_level` for one level of single devices, where only times below `upper_s` matter.

    The replicas of a stage share a machine, which is each `machine` units in a row. The parameter
    bytes stand in `tables.cpu_s`. Looks at each pair of ideals once and leaves out what cannot end
    below `upper_s`, so it takes many more ideals.

    Returns:
        As `split_level`, from the empty ideal only and with exactly so many units.
    """
    count = len(tables.accelerator_s)
    work_s, parameter_bytes = tables.accelerator_s, tables.cpu_s
    value = np.full((1, count, num_units + 1), np.inf)
    before = np.full((1, count, num_units + 1), -1, dtype=np.int32)
    replicas = np.zeros((1, count, num_units + 1), dtype=np.int32)
    best = value[0]
    best[0, 0] = 0
    for index in range(count - 1):
        rest_s = work_s[-1] - work_s[index]
        fewest = 0
        while fewest < num_units and best[index, fewest] >= upper_s:
            fewest += 1
        left = num_units - fewest
        if left == 0 or rest_s > left * upper_s:
            continue
        lowest_s = work_s[-1] - (left - 1) * upper_s
        widest = min(left, most_replicas)
        for other in range(max(index + 1, int(np.searchsorted(work_s, lowest_s))), count):
            stage_s = work_s[other] - work_s[index]
            if stage_s >= widest * upper_s:
                break
            if not contains(tables.words, other, index):
                continue
            size = parameter_bytes[other] - parameter_bytes[index]
            for width in range(1, widest + 1):
                last_s = (stage_s + sync_s[width] * size) / width
                if last_s >= upper_s:
                    continue
                for units in range(fewest + width, num_units + 1):
                    slowest_s = max(best[index, units - width], last_s)
                    is_whole = (units - width) // machine == (units - 1) // machine
                    if is_whole and slowest_s < best[other, units]:
                        best[other, units] = slowest_s
                        before[0, other, units] = index if index else -1
                        replicas[0, other, units] = width
    return value, before, replicas
