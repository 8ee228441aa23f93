"""The system `sailor`: which devices, layers and replicas under Sailor's own cost, as a plan.

Strati et al., Sailor: Automating distributed training over dynamic, heterogeneous, and
geo-distributed clusters, SOSP 2025. The paper's text and notes on its published code, its profiles
and the results of its simulator were reachable. Like in the paper, devices may stay idle; a job
whose objective is the price gets the cheapest plan above its floor by Sailor's cost. Decided here:

- The search is exact up to a tolerance (`planner`), where Sailor's is a heuristic: it cuts layers
  evenly, and takes numbers of replicas until there is no gain. It mixes types among the replicas
  of a stage; here these are of one type.
- A type is a device type with one memory, price and region: replicas of a stage stay in a region,
  pipelines may cross regions, as in the paper. What leaves a region costs nothing. Between two
  types the slowest link counts, whatever the size of a group.
- Tensor-parallel groups are those that the strategy allows and every node of a type holds whole.
- The size of micro-batches is the job's. Sizes are in Sailor's unit, float32 elements, and so keep
  the profile's bytes. Activations are all kept, state is not divided.
"""

from __future__ import annotations

import warnings

from heterps_agents.finishing.chains import routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.sailor.planner import SailorLimits, plan_for
from heterps_agents.systems.sailor.view import View
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of


@register("sailor")
class Sailor(System):
    """The quickest, or the cheapest, plan that passes Sailor's memory check."""

    name = "sailor"
    chooses_options = True

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Its stages, whose replicas are of one type, over the devices in the cluster's order."""
        if problem.strategy.recompute == "full":
            warnings.warn("sailor keeps all activations: recompute full is ignored", stacklevel=2)
        view = View(problem)
        found = plan_for(
            view.model(),
            view.cluster(),
            view.links(),
            {gpu: len(devices) for gpu, devices in view.types.items()},
            problem.job.global_batch_size,
            SailorLimits(goal=view.goal()),
        )
        budget.spend(max(1, found.sweeps))
        stages, pipelines = routed([view.chain(found.plan)], [range(problem.job.num_micro_batches)])
        plan = plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)
        return SystemAnswer(plan, OwnCost(found.cost.iteration_s, STEP))
