"""From the end of an episode to a plan: what `info["code"]` of the environments stands for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from heterps.micro_batches.one_size import place_one_size, with_executable
from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.problems import A_PROBLEM
from heterps_agents.interface.planner import Budget
from heterps_configs.arguments import check_type
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.formula import MAX_REPLICAS, REPLICA_SHIFT
from heterps_envs.closed_form.placement import PlacedStage, decode
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind


def place_code(problem: Problem, code: ArrayLike, *, name: str = "code") -> PlaceResult:
    """The plan of a placement that an environment found, and what the simulator says of it.

    Args:
        problem: Whose `tables` the environment had.
        code: `info["code"]`: an integer for each layer.
        name: Of whoever found it: the plan's `planner`.

    Raises:
        HeterpsError: The code is not one of this problem.
        InfeasibleError: Memory or the throughput floor is not kept.
    """
    check_type("problem", problem, Problem, A_PROBLEM)
    check_type("name", name, str, "a text")
    placement = _checked(problem, code)
    result = place_one_size(problem.plain, _Known(name, problem, placement), Budget())
    return with_executable(result, [result.problem])


class _Known:
    """A planner that has its answer already."""

    def __init__(self, name: str, problem: Problem, placement: Sequence[PlacedStage]) -> None:
        self.name, self._problem, self._placement = name, problem, placement

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The placement on devices; its classes are those of the problem that it was made for."""
        budget.spend()
        return bind(self._problem, self._placement, planner=self.name, seed=0)


def _checked(problem: Problem, code: ArrayLike) -> Sequence[PlacedStage]:
    layers = problem.profile.num_layers
    try:
        values = np.asarray(code)
    except ValueError as error:
        raise HeterpsError(f"code: {error}; expected {layers} integers") from None
    if values.shape != (layers,) or not np.issubdtype(values.dtype, np.integer):
        raise HeterpsError(
            f"code: {values.dtype} of shape {values.shape}; expected {layers} integers, one for "
            "each layer of the problem"
        )
    stop = MAX_REPLICAS << REPLICA_SHIFT
    if np.any(values < 0) or np.any(values >= stop):
        raise HeterpsError(
            f"code: holds numbers that no environment makes; allowed: 0 to {stop - 1}"
        )
    placement = decode(values.astype(np.int32))
    unknown = [each for each in placement if each.device_class >= len(problem.classes)]
    if unknown:
        raise HeterpsError(
            f"code: layer {unknown[0].first_layer} is on device class {unknown[0].device_class}; "
            f"the problem has {len(problem.classes)}"
        )
    return placement
