"""The system `malleus`: pipelines that go round slow devices, as a plan of ours.

Malleus answers with a plan anew when some devices have become slower by known ratios. Here the
ratios are those of the devices' seconds for the whole model to the fastest device's: what is slower
by nature is planned for as what has become slow. Its layers are all alike (ours count as their
mean), and filling and draining a pipeline takes no time. Tensor parallelism is left out: a stage of
our plans runs on one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

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

LEAST_S = 1e-15


@register("malleus")
class Malleus(System):
    """The best of its answers for every number of pipelines.

    They use all devices; where none of these fits, they may be shorter and leave slow ones out.
    """

    name = "malleus"

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Pipelines with layers and shares of the batch as their devices are fast."""
        # Where a class takes no time at all, the others are infinitely slower but for this.
        whole_s = np.maximum(problem.tables.compute_s.sum(axis=0), LEAST_S)
        slower = (whole_s / whole_s.min()).tolist()
        ratios = {name: slower[kind] for name, kind in problem.class_of.items()}
        found = _best_of(problem, ratios, _uniform_plans(problem, uses_all=True), budget)
        if isinstance(found, InfeasibleError):
            reason = found
            found = _best_of(problem, ratios, _uniform_plans(problem, uses_all=False), budget)
            if isinstance(found, InfeasibleError):
                raise reason
        chains = [_chain(pipeline) for pipeline in found.pipelines]
        shares = [pipeline.micro_batches for pipeline in found.pipelines]
        ends = np.cumsum(shares).tolist()
        parts = [range(end - share, end) for end, share in zip(ends, shares, strict=True)]
        stages, pipelines = routed(chains, parts)
        plan = plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)
        layer_s = float(whole_s.min()) / problem.tables.num_layers
        return SystemAnswer(plan, OwnCost(found.seconds * layer_s, STEP))


def _best_of(
    problem: Problem, ratios: Mapping[str, float], uniform: Iterable[UniformPlan], budget: Budget
) -> StragglerPlan | InfeasibleError:
    """The fastest plan, the first of equals; or why the first of them does not fit."""
    best: StragglerPlan | None = None
    reasons: list[InfeasibleError] = []
    for each in uniform:
        if (best or reasons) and budget.is_exhausted:
            break
        budget.spend()
        try:
            found = replan_stragglers(ratios, nodes_of(problem), each, _memory_of(problem, each))
        except InfeasibleError as error:
            reasons.append(error)
            continue
        if best is None or found.seconds < best.seconds:
            best = found
    return best or reasons[0]


def _uniform_plans(problem: Problem, uses_all: bool) -> Iterator[UniformPlan]:
    """Every number of pipelines, as long as the devices allow or also shorter."""
    count, job = len(problem.cluster.devices), problem.job
    layers = problem.tables.num_layers
    for number in range(1, min(count, job.num_micro_batches) + 1):
        longest = min(count // number, layers)
        for stages in range(longest, longest - 1 if uses_all else 0, -1):
            yield UniformPlan(number, stages, 1, layers, job.num_micro_batches)


def _memory_of(problem: Problem, uniform: UniformPlan) -> StageMemory:
    """The mean layer's bytes, with as many micro-batches in flight as stages are left."""
    tables = problem.tables
    state, kept = float(tables.state_bytes.mean()), float(tables.activation_bytes.mean())
    in_flight = [
        tables.num_micro_batches if tables.is_gpipe else uniform.num_stages - stage
        for stage in range(uniform.num_stages)
    ]
    per_layer = tuple(state + held * kept for held in in_flight)
    limits = {name: float(tables.memory_bytes[kind]) for name, kind in problem.class_of.items()}
    return StageMemory(per_layer, 0.0, 0.0, min(limits.values()), limits)


def _chain(pipeline: StragglerPipeline) -> Chain:
    columns: list[Column] = []
    start = 0
    for group, count in zip(pipeline.groups, pipeline.layers, strict=True):
        if count:
            columns.append(Column(start, start + count - 1, group.devices))
        start += count
    return tuple(columns)
