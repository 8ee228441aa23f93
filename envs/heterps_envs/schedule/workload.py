"""Workload: what a plan asks of its devices and links, stage by stage and route by route."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Integers
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Direction, PassKind


class StageCost(NamedTuple):
    """One stage of a plan: its device, seconds of a full micro-batch, bytes over the cut behind.

    Of a tensor-parallel group the first device stands for all: they run each pass together, and the
    largest share decides how long it takes, or of unlike devices the slowest at each layer.
    `backward_s` holds the forward passes of layers that are computed again, and
    `weight_gradient_s`, the part that a zero-bubble schedule may put off; both passes hold what the
    link to the host takes longer than layers that are offloaded.
    """

    device: str
    first_layer: int
    forward_s: float
    backward_s: float
    weight_gradient_s: float
    output_bytes: float

    def seconds(self, kind: PassKind) -> float:
        """Compute seconds of one pass of a full micro-batch."""
        if kind == "forward":
            return self.forward_s
        if kind == "backward":
            return self.backward_s
        put_off = self.weight_gradient_s
        return put_off if kind == "backward-weight" else self.backward_s - put_off


class Workload(NamedTuple):
    """What the list scheduler and the simulator need of a plan.

    Attributes:
        stages: Costs by stage name.
        front: For each micro-batch, stage -> the stage in front of it on the route, if any.
        behind: The same for the stage behind it.
        shares: For each micro-batch, its samples over those of a full one. Tables hold the seconds
            and bytes of a full micro-batch; a smaller one is charged this share.
    """

    stages: dict[str, StageCost]
    front: tuple[dict[str, str], ...]
    behind: tuple[dict[str, str], ...]
    shares: tuple[float, ...]

    def seconds(self, kind: PassKind, stage: str, micro_batch: int) -> float:
        """Compute seconds of one pass."""
        return self.shares[micro_batch] * self.stages[stage].seconds(kind)

    def source(self, kind: Direction, stage: str, micro_batch: int) -> str | None:
        """The stage whose result a pass needs; None at the start of the way there or back."""
        return (self.front if kind == "forward" else self.behind)[micro_batch].get(stage)

    def target(self, kind: Direction, stage: str, micro_batch: int) -> str | None:
        """The stage that needs the result of a pass; None at the end."""
        return (self.behind if kind == "forward" else self.front)[micro_batch].get(stage)

    def message_bytes(self, kind: Direction, stage: str, micro_batch: int) -> float:
        """Bytes that the stage sends after a pass: activations, or as many of their gradients."""
        cut = stage if kind == "forward" else self.front[micro_batch][stage]
        return self.shares[micro_batch] * self.stages[cut].output_bytes


def workload(problem: Problem, plan: Plan) -> Workload:
    """Collects the costs of a plan.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    check_plan(problem, plan)
    stages = {stage.name: stage_cost(problem, stage) for stage in plan.stages}
    front: dict[int, dict[str, str]] = {}
    behind: dict[int, dict[str, str]] = {}
    for pipe in plan.pipelines:
        back, forth = dict(pairwise(reversed(pipe.stages))), dict(pairwise(pipe.stages))
        front.update((m, back) for m in pipe.micro_batches)
        behind.update((m, forth) for m in pipe.micro_batches)
    sizes = problem.job.micro_batch_sizes
    micro_batches = range(len(sizes))
    return Workload(
        stages,
        tuple(front[m] for m in micro_batches),
        tuple(behind[m] for m in micro_batches),
        tuple(size / problem.job.micro_batch_size for size in sizes),
    )


def own_share(problem: Problem, stage: Stage, device: str) -> float:
    """What a device of a stage's group takes for its own slice, over what the slowest one takes.

    Both with their sums over the group, and without waiting in them; 1 where all are alike.
    """
    if not problem.has_unlike_devices(stage) and not stage.uneven_shares:
        return 1.0
    own_s = {}
    for rank, name in enumerate(stage.devices):
        tables = problem.for_stage(stage, rank).tables
        own_s[name] = float(tables.compute_s[list(stage.layers), problem.class_of[name]].sum())
    slowest_s = max(own_s.values())
    return own_s[device] / slowest_s if slowest_s > 0 and own_s[device] > 0 else 1.0


def stage_way(problem: Problem, stage: Stage) -> tuple[Hashable, ...]:
    """What decides its seconds: equal for replicas, which there may be hundreds of."""
    kinds = tuple([problem.class_of[name] for name in stage.devices])
    away = stage.recompute_layers, stage.offloaded_layers
    own = kinds, stage.first_layer, stage.last_layer, *away
    if len(kinds) == 1:
        return own
    return *own, stage.tensor_shares, stage.whole_layers, stage.batch_layers


def stage_ways(problem: Problem, stages: Sequence[Stage]) -> tuple[list[Stage], Integers]:
    """A stage of each way that there is among some, and (S,) which way each of them is."""
    found: dict[tuple[Hashable, ...], int] = {}
    examples, way_of = list[Stage](), list[int]()
    for stage in stages:
        way = found.setdefault(stage_way(problem, stage), len(found))
        if way == len(examples):
            examples.append(stage)
        way_of.append(way)
    return examples, np.array(way_of, np.int64)


def stage_cost(problem: Problem, stage: Stage) -> StageCost:
    """What a stage takes for one full micro-batch; found once for equal stages on equal devices."""
    key = stage_cost, stage_way(problem, stage)
    known = problem.derived.get(key)
    if not isinstance(known, StageCost):
        problem.derived[key] = known = _stage_cost(problem, stage)
    return known._replace(device=stage.devices[0])


def _stage_cost(problem: Problem, stage: Stage) -> StageCost:
    own = problem.for_stage(stage)
    tables, times = own.tables, own.layer_times
    part, device = slice(stage.first_layer, stage.last_layer + 1), stage.devices[0]
    kind = problem.class_of[device]
    # Each pass packs what it sends over one cut and lays out what it received over the other.
    cuts = [cut for cut in (stage.first_layer - 1, stage.last_layer) if cut >= 0]
    cut_s = times.cut_s[cuts, kind].sum() / 2
    forward_s, backward_s = tables.forward_s[part, kind].sum(), tables.backward_s[part, kind].sum()
    weight_gradient_s = times.weight_gradient_s[part, kind].sum()
    again_s = tables.forward_s[list(stage.recompute_layers), kind].sum()
    away = list(stage.offloaded_layers)
    if away:
        forward_s += own.offload.forward_s[away, kind].sum()
        backward_s += own.offload.backward_s[away, kind].sum()
    return StageCost(
        device,
        stage.first_layer,
        # What a stage takes beside its layers may be below 0, and was measured on a longer one.
        float(max(forward_s + times.stage_forward_s[stage.first_layer, kind], 0.0) + cut_s),
        float(
            max(backward_s + times.stage_backward_s[stage.first_layer, kind], weight_gradient_s)
            + again_s
            + cut_s
        ),
        float(weight_gradient_s),
        float(tables.output_bytes[stage.last_layer]),
    )
