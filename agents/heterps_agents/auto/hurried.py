"""What `auto` looks for first at each size of micro-batches, where its time is limited."""

from __future__ import annotations

from heterps_agents.asymmetric.candidates import LONGER, candidates
from heterps_agents.asymmetric.candidates import NEAR as NEAR_LANES
from heterps_agents.auto.others import part_of
from heterps_agents.auto.walks import walked
from heterps_agents.finishing.finds import best_of_finds
from heterps_agents.interface.planner import Budget
from heterps_agents.learned.planner import PolicyPlanner
from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import simulated_step_time_s

# Of its budget, for a chain; the rest is for lanes side by side.
CHAIN_PART, WALK_PART = 2 / 3, 1 / 2


class HurriedPlanner:
    """The policy's best chain, and lanes side by side that small moves make of it.

    Args:
        planner: Name that plans carry.
        seed: Written into plans.
        effort: Name of an effort.
        chains_only: Whether plans that are no chains are left out.
    """

    chooses_options = True

    def __init__(self, planner: str, seed: int, effort: str, *, chains_only: bool) -> None:
        self.name, self.seed, self._chains_only = planner, seed, chains_only
        self._policy = PolicyPlanner(seed, effort=effort)
        self._policy.name = planner

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan found.

        Raises:
            InfeasibleError: No chain was found.
        """
        own = budget.share(CHAIN_PART)
        own.known_cost = budget.known_cost
        chain = best_of_finds(problem, self._policy.plan(problem, own), own)
        budget.charge(own)
        if self._chains_only or budget.is_exhausted or not can_run(problem, chain):
            return chain
        step_time_s = simulated_step_time_s(problem, chain)
        if step_time_s > NEAR_LANES * budget.known_cost:
            return chain
        with part_of(budget, WALK_PART) as own:
            chain = walked(problem, chain, own, self.seed)
        known = chain.changed(predicted_step_time_s=simulated_step_time_s(problem, chain))
        found = candidates(problem, budget, known, self.seed, LONGER)
        return found[0].changed(planner=self.name, bound=Bound()) if found else chain
