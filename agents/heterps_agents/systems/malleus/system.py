"""The system `malleus`: pipelines that go round slow devices, as a plan of ours.

Malleus answers with a plan anew when some devices have become slower by known ratios. Here the
ratios are those of the devices' seconds for the whole model to the fastest device's: what is slower
by nature is planned for as what has become slow. Its layers are all alike (ours count as their
mean), and filling and draining a pipeline takes no time.

Where a strategy allows tensor parallelism, stages are groups: of every allowed size, split where
a device of theirs is slow (`heterps_agents.systems.malleus.degrees` has what that costs). By
Malleus' own cost many small groups are as good as few large ones, because a pipeline has no bubble
there; Malleus begins with a plan that somebody has chosen. Here our simulator chooses: between its
answers for every size of groups and number of pipelines, and what keeping the groups of a running
plan would take.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.degrees import degrees_of
from heterps_agents.systems.devices import nodes_of
from heterps_agents.systems.malleus.degrees import DegreeTimes
from heterps_agents.systems.malleus.plans import (
    Groups,
    StragglerPipeline,
    StragglerPlan,
    UniformPlan,
)
from heterps_agents.systems.malleus.straggler import keep_groups, regroup
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import estimate

# Answers that the simulator chooses from, the best by Malleus' own cost.
MAX_FINALISTS = 24


class _Found(NamedTuple):
    """An answer, with what a step takes by Malleus' own cost."""

    plan: StragglerPlan
    seconds: float


@register("malleus")
class Malleus(System):
    """The best of its answers for every number of pipelines, and every size of groups.

    Alone, devices are all used; where no such plan fits, pipelines may be shorter and leave slow
    ones out.

    Args:
        seed: Written into plans.
        running: A plan that runs on the problem's devices: keeping its groups is an answer, too.
    """

    name = "malleus"
    chooses_options = True

    def __init__(self, seed: int = 0, running: Plan | None = None) -> None:
        super().__init__(seed)
        self.running = running

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Pipelines with groups, layers and shares of the batch as their devices are fast."""
        if problem.strategy.recompute == "full":
            warnings.warn("malleus keeps all activations: recompute full is ignored", stacklevel=2)
        degrees = degrees_of(problem, problem.strategy.tensor_parallel)
        if not degrees:
            raise HeterpsError("no node has room for a group of a size that is allowed")
        answers: list[_Found] = []
        reason: InfeasibleError | None = None
        if 1 in degrees:
            alone = _alone(problem, budget)
            if isinstance(alone, InfeasibleError):
                reason = alone
            else:
                answers.append(alone)
        if degrees != (1,):
            answers += sorted(_in_groups(problem, degrees, budget), key=lambda each: each.seconds)
        kept = self._kept(problem, degrees, budget)
        answers = [*([kept] if kept else []), *answers]
        if not answers:
            raise reason or InfeasibleError(
                f"{problem.tables.num_layers} layers fit on no pipelines of groups of "
                f"{' or '.join(map(str, degrees))} devices"
            )
        return self._best(problem, answers[:MAX_FINALISTS], budget)

    def _best(self, problem: Problem, answers: list[_Found], budget: Budget) -> SystemAnswer:
        """By the simulator, where there are several; plans that cannot be run come last."""
        plans = [self._plan(problem, each.plan) for each in answers]
        best, rank = 0, (False, False, 0.0)
        for index, plan in enumerate(plans if len(plans) > 1 else ()):
            if index and budget.is_exhausted:
                break
            budget.spend()
            shown = estimate(problem, plan)
            own = not can_run(problem, plan), not shown.feasible, shown.step_time_s
            if index == 0 or own < rank:
                best, rank = index, own
        return SystemAnswer(plans[best], OwnCost(answers[best].seconds, STEP))

    def _kept(self, problem: Problem, degrees: tuple[int, ...], budget: Budget) -> _Found | None:
        """The running plan's groups with other layers and micro-batches."""
        groups = None if self.running is None else _groups_of(problem, self.running)
        if groups is None:
            return None
        budget.spend()
        sizes = {len(devices) for own in groups for devices in own}
        times = DegreeTimes(problem, tuple(sorted({*degrees, *sizes})))
        uniform = UniformPlan(
            len(groups), max(map(len, groups)), max(sizes),
            problem.tables.num_layers, problem.job.num_micro_batches,
        )  # fmt: skip
        nodes, pace = nodes_of(problem), times.pace(uniform.group_size)
        plan = keep_groups(pace, nodes, uniform, times.memory(uniform.num_stages), groups)
        return plan and _Found(plan, plan.seconds * times.layer_s(uniform.group_size))

    def _plan(self, problem: Problem, found: StragglerPlan) -> Plan:
        shares = [pipeline.micro_batches for pipeline in found.pipelines]
        ends = np.cumsum(shares).tolist()
        stages, pipelines = list[Stage](), list[Pipeline]()
        for number, own in enumerate(found.pipelines):
            prefix = f"p{number}" if len(found.pipelines) > 1 else ""
            chain = list(_stages(own, prefix))
            stages += chain
            pipelines.append(
                Pipeline(
                    stages=tuple(stage.name for stage in chain),
                    micro_batches=tuple(range(ends[number] - shares[number], ends[number])),
                )
            )
        return plan_of(problem, tuple(stages), tuple(pipelines), planner=self.name, seed=self.seed)


def _alone(problem: Problem, budget: Budget) -> _Found | InfeasibleError:
    """Stages of one device, which use all devices or, where that does not fit, also fewer."""
    found = _best_of(problem, _chains(problem, uses_all=True), budget)
    if not isinstance(found, InfeasibleError):
        return found
    shorter = _best_of(problem, _chains(problem, uses_all=False), budget)
    return found if isinstance(shorter, InfeasibleError) else shorter


def _best_of(
    problem: Problem, uniform: Iterable[UniformPlan], budget: Budget
) -> _Found | InfeasibleError:
    """The fastest plan, the first of equals; or why the first of them does not fit."""
    best: _Found | None = None
    reasons: list[InfeasibleError] = []
    times = DegreeTimes(problem, (1,))
    for each in uniform:
        if (best or reasons) and budget.is_exhausted:
            break
        try:
            found = _regrouped(times, each, budget)
        except InfeasibleError as error:
            reasons.append(error)
            continue
        if best is None or found.seconds < best.seconds:
            best = found
    return best or reasons[0]


def _chains(problem: Problem, uses_all: bool) -> Iterator[UniformPlan]:
    """Every number of pipelines, as long as the devices allow or also shorter."""
    count, job = len(problem.cluster.devices), problem.job
    layers = problem.tables.num_layers
    for number in range(1, min(count, job.num_micro_batches) + 1):
        longest = min(count // number, layers)
        for stages in range(longest, longest - 1 if uses_all else 0, -1):
            yield UniformPlan(number, stages, 1, layers, job.num_micro_batches)


def _in_groups(problem: Problem, degrees: tuple[int, ...], budget: Budget) -> Iterator[_Found]:
    """Answers with groups of every size, with as many stages as there are groups, and one more."""
    times, job = DegreeTimes(problem, degrees), problem.job
    layers = problem.tables.num_layers
    for size in (degree for degree in degrees if degree > 1):
        count = sum(len(node) // size for node in nodes_of(problem))
        for number in range(1, min(count, job.num_micro_batches) + 1):
            for stages in dict.fromkeys(min(count // number + more, layers) for more in (0, 1)):
                if budget.is_exhausted:
                    return
                uniform = UniformPlan(number, stages, size, layers, job.num_micro_batches)
                try:
                    yield _regrouped(times, uniform, budget)
                except InfeasibleError:
                    continue


def _regrouped(times: DegreeTimes, uniform: UniformPlan, budget: Budget) -> _Found:
    budget.spend()
    size, nodes = uniform.group_size, nodes_of(times.problem)
    plan = regroup(times.pace(size), nodes, uniform, times.memory(uniform.num_stages))
    return _Found(plan, plan.seconds * times.layer_s(size))


def _groups_of(problem: Problem, plan: Plan) -> Groups | None:
    """Groups of the pipelines of a plan; None where pipelines share stages, or devices are gone."""
    names = [name for pipeline in plan.pipelines for name in pipeline.stages]
    devices = [name for stage in plan.stages for name in stage.devices]
    is_known = all(name in problem.device_named for name in devices)
    if not is_known or len(set(names)) < len(names) or len(set(devices)) < len(devices):
        return None
    return tuple(
        tuple(plan.stage(name).devices for name in pipeline.stages) for pipeline in plan.pipelines
    )


def _stages(pipeline: StragglerPipeline, prefix: str) -> Iterator[Stage]:
    start, index = 0, 0
    for group, count in zip(pipeline.groups, pipeline.layers, strict=True):
        if count:
            yield Stage(
                name=f"{prefix}s{index}",
                first_layer=start,
                last_layer=start + count - 1,
                devices=group.devices,
            )
            index += 1
        start += count
