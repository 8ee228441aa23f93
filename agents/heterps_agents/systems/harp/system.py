"""The system `harp`: a fine cut over islands of equal devices, with launch counts for slow links.

Liang et al., HARP: Orchestrating automated parallel training on heterogeneous GPU clusters, 2026
(first as HAPT, arXiv 2509.24859). The abstract and the published README were reachable, which
prints one plan with its launch counts and cost (`heterps_agents.systems.harp.cost` reproduces it),
and neither the text nor the code was read. Decided here:

- Islands are the classes of devices, one for each node where these are few, in every order. Stages
  stay on an island; devices may be left out. A stage has a power of two of its devices, or all.
- The devices of a stage take micro-batches in turns (its own plans divide each one among them): a
  micro-batch fills the pipeline for the seconds of one device, and the period is a part of that.
- Seconds of messages are there and back. A link that sends a message longer than a stage computes
  sets the period, too.
- A stage launches one micro-batch, and as many more as hide the messages and stages behind it.
  Memory counts them; where it is short, a longer period needs fewer. Where memory has room, no
  stage launches fewer than 1F1B lets it. Only under 1F1B a plan has these counts: other schedules
  of ours have their own.
- Sums of gradients are no part of its cost.
"""

from __future__ import annotations

from collections import defaultdict

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.harp.planner import HarpStage, plan_chain
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.schedule.in_flight import in_flight_micro_batches
from heterps_envs.simulator.binding import plan_of


@register("harp")
class Harp(System):
    """The cut with the least cost on all orders of islands, and its launch counts."""

    name = "harp"

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The pipeline with the least cost by HARP's formula.

        Raises:
            InfeasibleError: None fits with what its stages have in flight.
        """
        found = plan_chain(problem.tables, budget)
        if found is None:
            raise InfeasibleError("no cut fits with the micro-batches that its stages launch")
        chain = _columns(problem, found.stages)
        stages, pipelines = routed([chain], [range(problem.job.num_micro_batches)])
        plan = plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)
        if problem.job.schedule != "1f1b":
            note = f"its launch counts, which {problem.job.schedule} cannot have"
            return SystemAnswer(plan, OwnCost(found.seconds, STEP, note))
        launched = {stage.start: stage.launched for stage in found.stages}
        held = in_flight_micro_batches(plan)
        counted = tuple(
            stage
            if held[stage.name] == launched[stage.first_layer]
            else stage.changed(in_flight=launched[stage.first_layer])
            for stage in plan.stages
        )
        return SystemAnswer(plan.changed(stages=counted), OwnCost(found.seconds, STEP))


def _columns(problem: Problem, stages: tuple[HarpStage, ...]) -> tuple[Column, ...]:
    """The next devices of its island for each stage."""
    taken: dict[int, int] = defaultdict(int)
    columns = []
    for stage in stages:
        first = taken[stage.device_class]
        taken[stage.device_class] = first + stage.replicas
        devices = problem.classes[stage.device_class].devices[first : first + stage.replicas]
        names = tuple(device.name for device in devices)
        columns.append(Column(stage.start, stage.stop - 1, names))
    return tuple(columns)
