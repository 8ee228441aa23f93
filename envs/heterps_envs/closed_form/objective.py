"""What a search minimises: one number for both objectives, graded where nothing fits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.job import Job
from heterps_envs.arrays import Code
from heterps_envs.closed_form.formula import (
    CUT_BIT,
    OPTION_MASK,
    REPLICA_SHIFT,
    Built,
    append_stage,
)
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.stage_formula import in_flight, stage_bytes
from heterps_envs.compiled import MINUS_ONE, ZERO, checked, inlined, uncounted, uncounted_helper

# A step time that meets the floor but for the rounding of its sums meets the floor.
ROUNDING = 1e-9
# Costs above these are not step times or prices: too slow for the floor; more devices or memory
# used than there are. Within each the cost is graded, so that a search can climb out.
MISSES_FLOOR, DOES_NOT_FIT = 1e9, 1e12
# Added to prices, so that among equally cheap placements (free devices) the faster one wins.
TIE_BREAK_USD_PER_HOUR = 1e-9


class Goal(NamedTuple):
    """The objective of a job, as kernels take it.

    Attributes:
        is_price: Minimise price per hour times step time; otherwise the step time.
        floor_s: Longest step time that is allowed; inf without a throughput floor.
    """

    is_price: bool = False
    floor_s: float = math.inf

    @classmethod
    def of(cls, job: Job) -> Goal:
        """The goal of a job; a throughput floor holds for both objectives."""
        floor = job.min_throughput_samples_per_s
        slowest = math.inf if floor is None else job.global_batch_size / floor * (1 + ROUNDING)
        return cls(is_price=job.objective == "price", floor_s=slowest)

    def cost(self, code: NDArray[np.int32], kernel: KernelTables) -> float:
        """`search_cost` of a coded placement; inf where it may not be used at all."""
        cost = float(code_cost(code, kernel, self))
        return cost if cost < MISSES_FLOOR else math.inf


STEP_TIME = Goal()


@uncounted
def read_stages(code: Any, stages: Any) -> int:
    """Writes the stages of a code, front first, as rows (layer behind the last, option, replicas).

    Args:
        code: (L,) int32.
        stages: (L, 3) int64 to write to.

    Returns:
        How many stages there are.
    """
    count, last = 0, code.shape[0] - 1
    for layer in range(last + 1):
        kind = code[layer] & OPTION_MASK
        if layer == last or code[layer] & CUT_BIT or (code[layer + 1] & OPTION_MASK) != kind:
            stages[count, 0] = layer + 1
            stages[count, 1] = kind
            stages[count, 2] = (code[layer] >> REPLICA_SHIFT) + 1
            count += 1
    return count


@uncounted
def write_code(stages: Any, num_stages: int, code: Any) -> None:
    """The inverse of `read_stages`."""
    start = 0
    for row in range(num_stages):
        stop, kind, replicas = stages[row, 0], stages[row, 1], stages[row, 2]
        for layer in range(start, stop):
            code[layer] = kind | ((replicas - 1) << REPLICA_SHIFT)
        if row + 1 < num_stages and stages[row + 1, 1] == kind:
            code[stop - 1] |= CUT_BIT
        start = stop


def code_of(stages: NDArray[np.int64], num_stages: int) -> Code:
    """(L,) int32 of stages, see `read_stages`."""
    code = np.zeros(stages[num_stages - 1, 0], np.int32)
    write_code(stages, num_stages, code)
    return code


@uncounted_helper
def reverse_stages(stages: Any, count: int) -> None:
    """Turns the first rows around: stages that were written back to front."""
    for row in range(count // 2):
        for column in range(3):
            other = stages[count - 1 - row, column]
            stages[count - 1 - row, column] = stages[row, column]
            stages[row, column] = other


@uncounted
def search_cost(stages: Any, num_stages: int, k: Any, used: Any, goal: Any) -> float:
    """What a search minimises.

    A placement that can be used costs its step time in seconds or, for the objective price, its
    US dollars per hour times that. One that misses the throughput floor costs over
    `MISSES_FLOOR`, the more the slower it is; one that does not fit over `DOES_NOT_FIT`, the more
    the more bytes (as shares of a device) and devices are missing.

    Args:
        stages: (L, 3) int64, see `read_stages`.
        num_stages: Rows in use.
        k: `KernelTables`.
        used: (T,) int64 scratch.
        goal: `Goal`.
    """
    return limited_cost(stages, num_stages, k, used, goal, math.inf)


@uncounted
def limited_cost(stages: Any, num_stages: int, k: Any, used: Any, goal: Any, limit: float) -> float:
    """`search_cost` up to a limit; above it a number between the limit and the cost.

    The first five arguments are those of `search_cost`.
    """
    if _count_devices(stages, num_stages, k, used) > 0 and limit < DOES_NOT_FIT:
        return DOES_NOT_FIT
    step_time_s, price, excess, _ = measure(stages, num_stages, k, goal, limit)
    for kind in range(k.num_classes):
        if used[kind] > k.device_count[kind]:
            excess += used[kind] - k.device_count[kind]
    return graded_cost(step_time_s, price, excess, goal)


@inlined
def measure(
    stages: Any, num_stages: int, k: Any, goal: Any, limit: float
) -> tuple[float, float, float, int]:
    """Closed form of stages, whether they fit or not, from the back to the front.

    Step time and price only grow with the stages put in front, so most of what costs more than the
    limit is known after a stage or two; then it ends there.

    Args:
        stages: (L, 3) int64, see `read_stages`.
        num_stages: Rows in use.
        k: `KernelTables`.
        goal: `Goal`.
        limit: Of the cost; inf for an answer about all stages.

    Returns:
        Step time in seconds; US dollars per hour; memory that the devices lack, as shares of a
        device; the row of the stage that needs a replica most.
    """
    behind_s, fill_s, price, excess, replicas_behind = 0.0, 0.0, 0.0, 0.0, ZERO
    slowest, fullest, most = num_stages - 1, 0, 0.0
    for row in range(num_stages - 1, -1, -1):
        stop, kind, replicas = stages[row, 0], stages[row, 1], stages[row, 2]
        start = stages[row - 1, 0] if row > 0 else 0
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, replicas_behind)
        memory = stage_bytes(k, start, stop, kind, replicas, held)
        if memory > k.memory_bytes[kind]:
            have = k.memory_bytes[kind]
            lacking = memory / have - 1.0 if have > 0.0 else memory - have
            excess += replicas * lacking
            if limit < DOES_NOT_FIT:
                break
            if lacking > most:
                most, fullest = lacking, row
        next_kind = stages[row + 1, 1] if row + 1 < num_stages else MINUS_ONE
        reached_s, filled_s = append_stage(
            k, start, stop, kind, replicas, held, Built(next_kind, behind_s, fill_s)
        )
        # Otherwise the stages behind it set the step time, and this one only delays them.
        if reached_s > behind_s + (filled_s - fill_s) + 1e-15:
            slowest = row
        behind_s, fill_s = reached_s, filled_s
        price += replicas * k.price_usd_per_hour[kind]
        replicas_behind += replicas
        # Whatever misses the floor or does not fit costs more than a limit below that.
        if limit < MISSES_FLOOR and graded_cost(behind_s, price, 0.0, goal) > limit:
            break
    return behind_s, price, excess, (fullest if excess > 0.0 else slowest)


@inlined
def graded_cost(step_time_s: float, price: float, excess: float, goal: Any) -> float:
    """What `search_cost` says of a placement that is measured.

    Args:
        step_time_s: Its step time.
        price: Of its devices, in US dollars per hour.
        excess: Memory that they lack, and devices that there are not, as shares of a device.
        goal: `Goal`.
    """
    if excess > 0.0:
        return DOES_NOT_FIT * (1.0 + excess)
    if step_time_s > goal.floor_s:
        return MISSES_FLOOR * (step_time_s / goal.floor_s)  # type: ignore[no-any-return]
    return (price + TIE_BREAK_USD_PER_HOUR) * step_time_s if goal.is_price else step_time_s


@uncounted_helper
def _count_devices(stages: Any, num_stages: int, k: Any, used: Any) -> int:
    """Writes the devices used of each class; returns how many there are not."""
    used[:] = 0
    for row in range(num_stages):
        kind = stages[row, 1]
        used[k.class_of_option[kind]] += stages[row, 2] * k.devices_of_option[kind]
    missing = 0
    for kind in range(k.num_classes):
        missing += max(0, used[kind] - k.device_count[kind])
    return missing


@checked
def code_cost(code: Any, k: Any, goal: Any) -> float:
    """`search_cost` of a coded placement."""
    stages = np.empty((k.num_layers, 3), np.int64)
    used = np.empty(k.num_classes, np.int64)
    return search_cost(stages, read_stages(code, stages), k, used, goal)


@checked
def stages_step_time_s(stages: Any, k: Any) -> float:
    """Closed-form step time of stages, whether they fit or not.

    Args:
        stages: (S, 3) int64, see `read_stages`; unlike a code with any number of options.
        k: `KernelTables`.
    """
    goal = Goal(False, math.inf)
    return measure(stages, stages.shape[0], k, goal, math.inf)[0]
