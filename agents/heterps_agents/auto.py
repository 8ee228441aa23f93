"""The planner `auto`: the exact solver where it is quick, else the learned policy and a search."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_agents.annealing import POLISH_TEMPERATURE, anneal, best_simple_code
from heterps_agents.answer import answer
from heterps_agents.exact import solve
from heterps_agents.exact_planner import proven_plan
from heterps_agents.objective import Goal, code_cost
from heterps_agents.planner import Budget
from heterps_agents.registry import planner_named, register
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import shipped
from heterps_configs.plan import Plan
from heterps_envs.binding import placement_of
from heterps_envs.closed_form import KernelTables, kernel_tables
from heterps_envs.placement import encode
from heterps_envs.problem import Problem

EXACT_SECONDS = 1.0
POLISH_EVALUATIONS = 5_000


@register("auto")
class AutoPlanner:
    """Exact when that is predicted to take less than a second.

    Otherwise the best of greedy, the proportional placements and the shipped policy (annealing,
    where none is shipped), polished; so never worse than `greedy`.
    """

    name = "auto"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan found, proven optimal where the exact solver made it.

        Raises:
            InfeasibleError: No plan was found.
        """
        kernel, goal = kernel_tables(problem.tables), Goal.of(problem.job)
        seconds = min(EXACT_SECONDS, budget.seconds_left)
        result = solve(kernel, goal, max_seconds=seconds)
        if result.status != "over budget":
            budget.spend(result.transitions)
            return proven_plan(problem, kernel, result, planner=self.name, seed=self.seed)
        codes = [best_simple_code(problem, kernel, goal, budget)]
        codes.append(self._learned_code(problem, kernel, goal, budget, codes[0]))
        start = min(codes, key=lambda code: code_cost(code, kernel, goal.is_price, goal.floor_s))
        code = anneal(
            start, kernel, goal, budget, self.seed,
            temperature=POLISH_TEMPERATURE, max_evaluations=POLISH_EVALUATIONS,
        )  # fmt: skip
        return answer(problem, kernel, code, planner=self.name, seed=self.seed)

    def _learned_code(
        self,
        problem: Problem,
        kernel: KernelTables,
        goal: Goal,
        budget: Budget,
        start: NDArray[np.int16],
    ) -> NDArray[np.int16]:
        """Code of the shipped policy's plan, or of annealing where no policy is shipped."""
        if not shipped("policies"):
            return anneal(start, kernel, goal, budget, self.seed)
        try:
            plan = planner_named("ppo", self.seed).plan(problem, budget)
        except InfeasibleError:
            return start
        placement = placement_of(problem, plan)
        assert placement is not None, "the policy's plans are bound placements"
        return encode(placement)
