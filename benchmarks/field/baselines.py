"""Baselines of papers that are no planners of this project, and planners by name with them."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.search.uniform_costs import UniformCosts
from heterps_agents.search.uniform_shapes import EvenStrategy, even_strategies, plan_of_strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import is_feasible, simulated_step_time_s

EVEN_REPLICAS, EVEN_ON_ALL = "even-replicas", "even-on-all"
# Of the even plans that fit by a closed form, so many are simulated, the quickest first.
MOST_SIMULATED = 24


class EvenOnAll:
    """The best even plan that uses every device: equal stages and replicas, one degree.

    What a user of Megatron does who does not leave paid devices idle; `uniform-3d` may.
    """

    name, chooses_options = EVEN_ON_ALL, True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The fastest that fits.

        Raises:
            InfeasibleError: None fits, or no shape uses all devices.
        """
        wanted = self.shapes(problem)
        if not wanted:
            raise InfeasibleError(f"{self.name}: no such plan uses every device")
        best: Plan | None = None
        for strategy in _quickest(problem, wanted):
            plan = plan_of_strategy(problem, strategy, self.name, self.seed)
            step_s = simulated_step_time_s(problem, plan)
            plan = plan.changed(predicted_step_time_s=step_s)
            budget.spend()
            is_faster = best is None or step_s < (best.predicted_step_time_s or 0.0)
            if is_faster and is_feasible(problem, plan):
                best = plan
        if best is None:
            raise InfeasibleError(f"{self.name}: the model does not fit on every device")
        return best

    def shapes(self, problem: Problem) -> list[EvenStrategy]:
        """The plans among which it chooses."""
        num_devices = len(problem.cluster.devices)
        return [
            strategy
            for strategy in even_strategies(problem)
            if strategy.shape.degree * strategy.shape.grid.size == num_devices
        ]


class EvenReplicas(EvenOnAll):
    """The whole model on every device, each with as many micro-batches as any other.

    What Horovod and data-parallel PyTorch do on devices of which they know nothing. Recomputing and
    dividing the optimizer state are tried, where the strategy allows them.
    """

    name = EVEN_REPLICAS

    def shapes(self, problem: Problem) -> list[EvenStrategy]:
        """Replicas on one device each."""
        return [
            strategy
            for strategy in super().shapes(problem)
            if (strategy.shape.degree, strategy.shape.num_stages) == (1, 1)
        ]


def planner_or_baseline(name: str, seed: int = 0) -> Planner:
    """The planner, system or baseline of a name.

    Raises:
        UnknownNameError: There is none.
    """
    baselines = {EVEN_REPLICAS: EvenReplicas, EVEN_ON_ALL: EvenOnAll}
    return baselines[name](seed) if name in baselines else planner_named(name, seed)


def _quickest(problem: Problem, strategies: Sequence[EvenStrategy]) -> list[EvenStrategy]:
    """Those that fit by the closed form, the quickest by it first; the nearest where none does."""
    quick = list(zip(strategies, UniformCosts(problem).quick(strategies), strict=True))
    quick.sort(key=lambda entry: (max(0.0, entry[1].lacks_bytes), entry[1].step_time_s))
    return [strategy for strategy, _ in quick[:MOST_SIMULATED]]
