"""A few good placements, and the one of them that the simulator likes best.

The closed form does not know of replicas that wait for their turn, nor of neighbours that are late:
where links are slow or few micro-batches are in flight, its optimum can be slower in the simulator
than a placement that is second by the closed form. So the optima of some neighbouring problems
join: slower links, a tighter throughput floor.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact.solve import predicted_seconds, solve
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.formula import KernelTables
from heterps_envs.closed_form.objective import Goal, graded_cost
from heterps_envs.closed_form.placement import decode
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind

# The first placement is left only for one that is this much better in the simulator.
MARGIN = 1.005


class Variant(NamedTuple):
    """A neighbouring problem: links slower by a factor, a tighter floor."""

    link_factor: float
    floor_factor: float


VARIANTS = (
    Variant(4.0, 1.0),
    Variant(1.0, 0.9),
    Variant(2.0, 1.0),
    Variant(1.0, 0.8),
    Variant(1.5, 1.0),
    Variant(8.0, 1.0),
)


def neighbouring_optima(
    kernel: KernelTables, goal: Goal, budget: Budget, max_seconds: float
) -> list[NDArray[np.int16]]:
    """Codes of the optima of as many variants as the predicted seconds allow.

    All of them fit and keep the floor by the closed form of the problem itself.
    """
    has_floor = math.isfinite(goal.floor_s)
    each_s, codes = predicted_seconds(kernel), []
    affordable = int(min(max_seconds, budget.seconds_left) / max(each_s, 1e-9))
    wanted = [variant for variant in VARIANTS if has_floor or variant.floor_factor == 1.0]
    for variant in wanted[:affordable]:
        slower = kernel._replace(
            latency_s=kernel.latency_s * variant.link_factor,
            inverse_bandwidth_s_per_byte=kernel.inverse_bandwidth_s_per_byte * variant.link_factor,
        )
        result = solve(
            slower,
            Goal(goal.is_price, goal.floor_s * variant.floor_factor),
            max_seconds=max_seconds,
        )
        budget.spend(result.transitions)
        if result.code is not None:
            codes.append(result.code)
    return codes


def best_simulated(
    problem: Problem,
    kernel: KernelTables,
    codes: list[NDArray[np.int16]],
    goal: Goal,
    *,
    planner: str,
    seed: int,
) -> tuple[Plan, NDArray[np.int16]]:
    """Binds and simulates placements that fit; the best plan, and its code.

    Args:
        problem: What was asked.
        kernel: Its cost tables.
        codes: At least one; ties, and gains under half a per cent, go to the first.
        goal: Objective and floor, here by the simulated step time.
        planner: Name that the plan carries.
        seed: Seed that the plan carries.
    """
    distinct = list({code.tobytes(): code for code in codes}.values())
    plans = [bind(problem, decode(code), planner=planner, seed=seed) for code in distinct]
    costs = [
        _simulated_cost(kernel, code, plan, goal)
        for code, plan in zip(distinct, plans, strict=True)
    ]
    best = min(range(len(costs)), key=lambda index: costs[index])
    chosen = best if costs[best] * MARGIN < costs[0] else 0
    return plans[chosen], distinct[chosen]


def _simulated_cost(kernel: KernelTables, code: NDArray[np.int16], plan: Plan, goal: Goal) -> float:
    step_time_s = plan.predicted_step_time_s
    assert step_time_s is not None, "binding simulates"
    price = sum(
        kernel.price_usd_per_hour[stage.device_class] * stage.replicas for stage in decode(code)
    )
    return graded_cost(step_time_s, float(price), 0.0, goal)  # type: ignore[no-any-return]
