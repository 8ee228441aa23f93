"""The system `tangram`: even plans of equal devices for slices of the model, as one pipeline.

Tao, Silvestre, Wagenländer and Pietzuch, Tangram: Hiding GPU heterogeneity for efficient LLM
parallelization, arXiv 2606.16907, 2026. The abstract and summaries were reachable; neither
formulas nor code. In the paper any parallelizer for equal GPUs plans slices of the model for
islands of the cluster, plans that are unlikely to help are pruned, and a dynamic programme composes
a balanced pipeline. Decided here:

- An island is a device class: equal devices of one node; then again of all equal nodes, and the
  better of both answers counts. Islands may stay idle.
- The parallelizer is every even plan: replicas, stages, and as far as a strategy allows it
  tensor-parallel degrees, recomputation, offloading and shared optimizer state. Where no strategy
  is given, stages may be computed again.
- Only plans that another one of the same slice and island equals or beats in everything are pruned,
  so that the composition is the best one of all. Slices end at any cut; of models of more than 96
  layers, at 96 cuts; at fewer where seconds are few.
- Own cost: filling, and the slowest stage or link for all other micro-batches, and the longest end
  (sums of gradients, optimizer step), by the profile's times and the slowest links between islands.
  A message between groups of unlike degree counts as one.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.tangram.composition import best_pipeline
from heterps_agents.systems.tangram.partial_plans import islands_of, partial_plans, stages_of
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.placement import Placement
from heterps_envs.options import options_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan


class _Found(NamedTuple):
    view: Problem
    placement: Placement
    step_time_s: float


@register("tangram")
class Tangram(System):
    """The best pipeline of even plans, one for each island that it uses."""

    name = "tangram"
    chooses_options = True

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The better of the answers with islands of one node, and of all equal nodes.

        Raises:
            InfeasibleError: No pipeline has memory.
        """
        merged = problem.over_nodes
        views = [problem] if merged is None else [problem, merged]
        answers, make = list[_Found](), partial(bound_plan, planner=self.name, seed=self.seed)
        for view in views:
            if answers and budget.is_exhausted:
                break
            budget.spend()
            found = _composed(view, budget)
            if found is not None:
                answers.append(found)
                budget.found(found.step_time_s, partial(make, view, found.placement), id(view))
        if not answers:
            raise InfeasibleError("no pipeline of even plans has room for the model")
        view, placement, seconds = min(answers, key=lambda each: each.step_time_s)
        return SystemAnswer(make(view, placement), OwnCost(seconds, STEP))


def _composed(problem: Problem, budget: Budget) -> _Found | None:
    allowed = options_of(problem, problem.strategy)
    islands = islands_of(problem, allowed, budget.seconds_left)
    plans = partial_plans(islands)
    found = best_pipeline(islands, plans, lambda: budget.time_share >= 1.0)
    if found is None:
        return None
    stages = [stage for index in found.plans for stage in stages_of(islands, plans, index)]
    return _Found(problem, tuple(stages), found.step_time_s)
