"""From the classes of all layers to a placement: stages, and replicas for them.

In HeterPS's cost model stages share no memory and no waiting, and their units can be found one
period after the other (`heterps_agents.systems.heterps.provisioning`). In the closed form, replicas
also change what the stages in front of them hold in flight, and so their memory and waiting
(`heterps_envs.closed_form.replicas`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_envs.closed_form.formula import CLASS_MASK, CUT_BIT, REPLICA_SHIFT, KernelTables
from heterps_envs.closed_form.replicas import provision_stages


@njit(cache=True)
def form_stages(kinds: Any, num_layers: int, stages: Any) -> int:
    """Writes the runs of equal classes, front first, as rows (layer behind the last, class, 1).

    Args:
        kinds: (L,) class of each layer; `CUT_BIT` ends a run although the class goes on.
        num_layers: How many of them count.
        stages: (L, 3) int64 to write to.

    Returns:
        How many stages there are.
    """
    count = 0
    for layer in range(num_layers):
        kind = kinds[layer] & CLASS_MASK
        if (
            layer + 1 == num_layers
            or kinds[layer] & CUT_BIT
            or (kinds[layer + 1] & CLASS_MASK) != kind
        ):
            stages[count, 0], stages[count, 1], stages[count, 2] = layer + 1, kind, 1
            count += 1
    return count


@njit(cache=True)
def write_stages(stages: Any, num_stages: int, code: Any) -> None:
    """Writes the code of stages, see `heterps_envs.closed_form.formula`."""
    start = 0
    for row in range(num_stages):
        stop, kind, replicas = stages[row, 0], stages[row, 1], stages[row, 2]
        for layer in range(start, stop):
            code[layer] = kind | ((replicas - 1) << REPLICA_SHIFT)
        if row + 1 < num_stages and stages[row + 1, 1] == kind:
            code[stop - 1] |= CUT_BIT
        start = stop


@njit(cache=True)
def _provision_rows(kinds: Any, k: Any, is_price: bool, floor_s: float, codes: Any) -> None:
    stages = np.empty((k.num_layers, 3), np.int64)
    begun = np.empty(k.num_classes, np.int64)
    for row in range(len(kinds)):
        count = form_stages(kinds[row], k.num_layers, stages)
        begun[:] = 0
        for stage in range(count):
            begun[stages[stage, 1]] += 1
        if (begun <= k.device_count).all():
            provision_stages(k, stages, count, is_price, floor_s)
        write_stages(stages, count, codes[row])


def provision(
    kinds: NDArray[np.integer[Any]],
    kernel: KernelTables,
    is_price: bool = False,
    floor_s: float = math.inf,
) -> NDArray[np.int16]:
    """Replicas for placements that only say the class of each layer.

    Args:
        kinds: (N, L) class of each layer; consecutive layers of one class are a stage, unless
            `CUT_BIT` stands at a layer: then a stage ends with it.
        kernel: Of the problem.
        is_price: Minimise price per hour times step time; otherwise the step time.
        floor_s: Longest step time that is allowed; inf for any.

    Returns:
        (N, L) int16 codes, see `heterps_envs.closed_form.formula`; they may still lack memory, or
        devices where there are more stages than devices of a class. `evaluate` says so.
    """
    codes = np.zeros(kinds.shape, np.int16)
    _provision_rows(np.asarray(kinds, np.int64), kernel, is_price, floor_s, codes)
    return codes
