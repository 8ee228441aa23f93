"""From a code to a plan, and from a failure to one clear message: what all planners end with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import decode
from heterps_envs.options import StageOption
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind


def answer(
    problem: Problem,
    kernel: KernelTables,
    code: NDArray[np.int32] | None,
    *,
    planner: str,
    seed: int,
    options: Sequence[StageOption] = (),
) -> Plan:
    """The plan of a planner's best code, with the lower bound of `heterps_envs.closed_form.bounds`.

    Args:
        problem: What was asked.
        kernel: Its cost tables.
        code: (L,) int32, or None where nothing was found at all.
        planner: Name that the plan carries.
        seed: Seed that the plan carries.
        options: Of the cost tables; empty: one for each class.

    Raises:
        InfeasibleError: The code does not fit, or misses the throughput floor.
    """
    if code is None or math.isinf(Goal.of(problem.job).cost(code, kernel)):
        raise InfeasibleError(f"{planner}: {explain_infeasible(problem)}")
    plan = bind(problem, decode(code, options), planner=planner, seed=seed)
    return plan.changed_unchecked(bound=bound_for(problem, plan))
