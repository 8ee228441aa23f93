"""The system `malleus`: pipelines that go round slow devices, as a plan of ours.

Malleus answers with a plan anew when some devices have become slower by known ratios. Here the
ratios are those of the devices' seconds for the whole model to the fastest device's: what is slower
by nature is planned for as what has become slow. Its layers are all alike (ours count as their
mean), its devices have one memory (the least of ours), and filling and draining a pipeline takes no
time. Tensor parallelism is left out: a stage of our plans runs on one device.
"""

from __future__ import annotations

import numpy as np

from heterps_agents.finishing.chains import Chain, Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.devices import nodes_of
from heterps_agents.systems.malleus.straggler import (
    StageMemory,
    StragglerPipeline,
    StragglerPlan,
    UniformPlan,
    replan_stragglers,
)
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of


@register("malleus")
class Malleus(System):
    """The best of its answers for every number of pipelines."""

    name = "malleus"

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Pipelines with layers and shares of the batch as their devices are fast."""
        whole_s = problem.tables.compute_s.sum(axis=0)
        slower = (whole_s / whole_s.min()).tolist()
        ratios = {name: slower[kind] for name, kind in problem.class_of.items()}
        best: StragglerPlan | None = None
        reasons: list[InfeasibleError] = []
        for uniform in _uniform_plans(problem):
            budget.spend()
            try:
                memory = _memory_of(problem, uniform)
                found = replan_stragglers(ratios, nodes_of(problem), uniform, memory)
            except InfeasibleError as error:
                reasons.append(error)
                continue
            if best is None or found.seconds < best.seconds:
                best = found
        if best is None:
            raise reasons[0]
        chains = [_chain(pipeline) for pipeline in best.pipelines]
        shares = [pipeline.micro_batches for pipeline in best.pipelines]
        ends = np.cumsum(shares).tolist()
        parts = [range(end - share, end) for end, share in zip(ends, shares, strict=True)]
        stages, pipelines = routed(chains, parts)
        plan = plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)
        layer_s = float(whole_s.min()) / problem.tables.num_layers
        return SystemAnswer(plan, OwnCost(best.seconds * layer_s, STEP))


def _uniform_plans(problem: Problem) -> list[UniformPlan]:
    """Every number of pipelines, as long as the devices allow, of one device for each stage."""
    count, job = len(problem.cluster.devices), problem.job
    layers = problem.tables.num_layers
    return [
        UniformPlan(number, min(count // number, layers), 1, layers, job.num_micro_batches)
        for number in range(1, min(count, job.num_micro_batches) + 1)
    ]


def _memory_of(problem: Problem, uniform: UniformPlan) -> StageMemory:
    """The mean layer's bytes, with as many micro-batches in flight as stages are left."""
    tables = problem.tables
    state, kept = float(tables.state_bytes.mean()), float(tables.activation_bytes.mean())
    in_flight = [
        tables.num_micro_batches if tables.is_gpipe else uniform.num_stages - stage
        for stage in range(uniform.num_stages)
    ]
    per_layer = tuple(state + held * kept for held in in_flight)
    return StageMemory(per_layer, 0.0, 0.0, float(tables.memory_bytes.min()))


def _chain(pipeline: StragglerPipeline) -> Chain:
    columns: list[Column] = []
    start = 0
    for group, count in zip(pipeline.groups, pipeline.layers, strict=True):
        if count:
            columns.append(Column(start, start + count - 1, group.devices))
        start += count
    return tuple(columns)
