"""From the classes of all layers to a placement: stages, and replicas for them.

In HeterPS's cost model stages share no memory and no waiting, and their units can be found one
period after the other (`heterps_agents.systems.heterps.provisioning`). In the closed form, replicas
also change what the stages in front of them hold in flight, and so their memory and waiting
(`heterps_envs.closed_form.replicas`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import STEP_TIME, Goal, read_stages, write_code
from heterps_envs.closed_form.replicas import provision_stages
from heterps_envs.compiled import checked


@checked
def _provision_rows(kinds: Any, k: Any, goal: Any, codes: Any) -> None:
    stages = np.empty((k.num_layers, 3), np.int64)
    begun = np.empty(k.num_classes, np.int64)
    for row in range(len(kinds)):
        count = read_stages(kinds[row], stages)
        begun[:] = 0
        for stage in range(count):
            begun[stages[stage, 1]] += 1
        if (begun <= k.device_count).all():
            provision_stages(k, stages, count, goal)
        write_code(stages, count, codes[row])


def provision(
    kinds: NDArray[np.integer[Any]], kernel: KernelTables, goal: Goal = STEP_TIME
) -> NDArray[np.int32]:
    """Replicas for placements that only say the class of each layer.

    Args:
        kinds: (N, L) class of each layer; consecutive layers of one class are a stage, unless
            `CUT_BIT` stands at a layer: then a stage ends with it.
        kernel: Of the problem.
        goal: What the replicas are to minimise.

    Returns:
        (N, L) int32 codes, see `heterps_envs.closed_form.formula`; they may still lack memory, or
        devices where there are more stages than devices of a class. `evaluate` says so.
    """
    codes = np.zeros(kinds.shape, np.int32)
    _provision_rows(np.asarray(kinds, np.int64), kernel, goal, codes)
    return codes
