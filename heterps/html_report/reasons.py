"""Why each stage is where it is: who sets the pace, and what moving a cut by a layer would do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from heterps.reports.folding import StageGroup, stage_groups
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.schedule.workload import stage_cost
from heterps_envs.simulator.simulate import feasible_step_time_s

# Cuts are looked at for so long; the rest is said not to have been.
MOST_SECONDS = 1.0


class Move(NamedTuple):
    """A cut that is moved by one layer.

    Attributes:
        layer: That changes its stage.
        is_forward: It goes to the stage behind; else from there to the stage in front.
        step_time_s: Simulated; inf where it does not fit.
    """

    layer: int
    is_forward: bool
    step_time_s: float


class Reason(NamedTuple):
    """Of some replicas of a stage.

    Attributes:
        group: The stages.
        busy_s: Passes of a step on its busiest replica.
        pace: Share of the slowest stage's passes: 1 sets the pace.
        moves: Of the cut behind it, where there was time for them; None without one.
    """

    group: StageGroup
    busy_s: float
    pace: float
    moves: tuple[Move, ...] | None


def reasons(problem: Problem, plan: Plan) -> list[Reason]:
    """One for each row of the table of stages, front to back."""
    groups, started_s = stage_groups(problem, plan), time.monotonic()
    busy = [_busy_s(problem, plan, group) for group in groups]
    most = max(busy) or 1.0
    found = []
    for group, seconds in zip(groups, busy, strict=True):
        is_last = group.last_layer == plan.num_layers - 1
        is_late = time.monotonic() - started_s > MOST_SECONDS
        moves = None if is_last or is_late else tuple(_moves(problem, plan, group.last_layer))
        found.append(Reason(group, seconds, seconds / most, moves))
    return found


def _busy_s(problem: Problem, plan: Plan, group: StageGroup) -> float:
    """Forward and backward passes of the replica with the most micro-batches."""
    stages = [stage for stage in plan.stages if stage.name in group.stages]
    counts = {
        stage.name: sum(
            len(pipe.micro_batches) for pipe in plan.pipelines if stage.name in pipe.stages
        )
        for stage in stages
    }
    return max(counts[stage.name] * _pass_s(problem, stage) for stage in stages)


def _pass_s(problem: Problem, stage: Stage) -> float:
    cost = stage_cost(problem, stage)
    return cost.forward_s + cost.backward_s


def _moves(problem: Problem, plan: Plan, last_layer: int) -> Sequence[Move]:
    found = []
    for is_forward in (True, False):
        moved = _moved(plan, last_layer, -1 if is_forward else 1)
        if moved is None:
            continue
        layer = last_layer if is_forward else last_layer + 1
        try:
            seconds = feasible_step_time_s(problem, moved)
        except HeterpsError:
            seconds = float("inf")
        found.append(Move(layer, is_forward, seconds))
    return found


def _moved(plan: Plan, last_layer: int, by: int) -> Plan | None:
    """The plan with a cut elsewhere; None where a stage would have no layer.

    All stages with the cut move it. A layer that changes its stage is carried out as that one's; it
    divides its state where the layer beside it does.
    """

    def moved(stage: Stage) -> tuple[int, int]:
        first = stage.first_layer + (by if stage.first_layer == last_layer + 1 else 0)
        return first, stage.last_layer + (by if stage.last_layer == last_layer else 0)

    if any(first > last for first, last in map(moved, plan.stages)):
        return None
    layer, beside = sorted((last_layer, last_layer + 1), reverse=by > 0)
    sharded = plan.sharded_layers
    sharded = sharded | {layer} if beside in sharded else sharded - {layer}
    try:
        return plan.changed(
            stages=tuple(_with_layers(stage, *moved(stage)) for stage in plan.stages),
            sharded_state=LayerRange.all_of(sharded),
        )
    except HeterpsError:
        return None


def _with_layers(stage: Stage, first: int, last: int) -> Stage:
    own, layers = set(stage.layers), tuple(range(first, last + 1))
    return stage.changed(
        first_layer=first,
        last_layer=last,
        recompute_layers=layers if own == set(stage.recompute_layers) else (),
        offloaded_layers=layers if own == set(stage.offloaded_layers) else (),
    )
