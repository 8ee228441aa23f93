"""Simple rules for graphs: earliest finish, the field's list scheduling, and a single device."""

from __future__ import annotations

import numpy as np

from heterps_agents.interface.planner import Budget
from heterps_envs.graphs.earliest_finish import earliest_finish_placements
from heterps_envs.graphs.problem import GraphProblems, Placement
from heterps_envs.graphs.simulator import graph_cost, graph_step_times


def simple_placement(problems: GraphProblems, row: int, budget: Budget | None = None) -> Placement:
    """The best of the earliest-finish rule in both orders and of everything on one device.

    Args:
        problems: Packed problems.
        row: Which one.
        budget: Charged with one evaluation for each placement looked at.

    Returns:
        (V,) int16; it need not fit, if none of them does.
    """
    one = GraphProblems._make(array[row : row + 1] for array in problems)
    nodes, devices = int(problems.num_nodes[row]), int(problems.num_devices[row])
    candidates = np.zeros((devices + 2, problems.max_nodes), np.int16)
    candidates[:devices] = np.arange(devices)[:, None]
    for index in range(2):
        candidates[devices + index] = earliest_finish_placements(one, by_rank=index == 1)[1][0]
    if budget is not None:
        budget.spend(len(candidates))
    step_time_s, overflow = np.empty(len(candidates)), np.empty(len(candidates))
    graph_step_times(one, np.zeros(len(candidates), np.int64), candidates, step_time_s, overflow)
    # Any that fits is better than all that do not.
    best = np.lexsort((graph_cost(step_time_s, overflow), overflow > 0))[0]
    return candidates[best, :nodes]
