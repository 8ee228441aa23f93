"""Baselines of papers that are no planners of this project, and planners by name with them."""

from __future__ import annotations

from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.search.uniform_shapes import even_strategies, plan_of_strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import is_feasible, simulated_step_time_s

EVEN_REPLICAS = "even-replicas"


class EvenReplicas:
    """The whole model on every device, each with as many micro-batches as any other.

    What Horovod and data-parallel PyTorch do on devices of which they know nothing. Recomputing and
    dividing the optimizer state are tried, where the strategy allows them.
    """

    name, chooses_options = EVEN_REPLICAS, True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The fastest that fits.

        Raises:
            InfeasibleError: The model does not fit on every device, or there are more of them than
                micro-batches.
        """
        best: Plan | None = None
        shapes = [
            strategy
            for strategy in even_strategies(problem)
            if strategy.shape[:3] == (1, 1, len(problem.cluster.devices))
        ]
        for strategy in shapes:
            plan = plan_of_strategy(problem, strategy, self.name, self.seed)
            step_s = simulated_step_time_s(problem, plan)
            plan = plan.changed(predicted_step_time_s=step_s)
            budget.spend()
            is_faster = best is None or step_s < (best.predicted_step_time_s or 0.0)
            if is_faster and is_feasible(problem, plan):
                best = plan
        if best is None:
            raise InfeasibleError(
                f"{self.name}: the model does not fit on every device"
                if shapes
                else f"{self.name}: fewer micro-batches than devices"
            )
        return best


def planner_or_baseline(name: str, seed: int = 0) -> Planner:
    """The planner, system or baseline of a name.

    Raises:
        UnknownNameError: There is none.
    """
    return EvenReplicas(seed) if name == EVEN_REPLICAS else planner_named(name, seed)
