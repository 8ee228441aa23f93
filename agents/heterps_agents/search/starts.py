"""The planner `annealing`: simulated annealing over stages, from the best simple placement.

A step moves a cut, changes the class or the replicas of a stage, splits, merges or swaps stages.
Worse placements are accepted with the probability exp(-log(cost ratio) / temperature) (Kirkpatrick,
Gelatt and Vecchi, 1983); ratios make the temperature independent of the problem's scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_agents.interface.planner import Budget
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.proportional import simple_placements
from heterps_envs.closed_form.formula import KernelTables
from heterps_envs.closed_form.objective import (
    Goal,
)
from heterps_envs.closed_form.placement import encode
from heterps_envs.problem import Problem


def simple_codes(
    problem: Problem, kernel: KernelTables, goal: Goal, budget: Budget
) -> list[NDArray[np.int16]]:
    """Codes of greedy and the proportional placements, whether they can be used or not.

    A budget of fewer evaluations gets fewer of them, but always one.
    """
    left = budget.evaluations_left
    placements = simple_placements(problem)[: None if left is None else max(1, left)]
    codes = [encode(placement) for placement in placements]
    budget.spend(len(codes) if left is None else min(len(codes), left))
    greedy = greedy_code(problem.tables, kernel, goal, budget)
    return codes if greedy is None else [greedy, *codes]
