"""How many micro-batches a stage may hold between their forward and backward passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Integers
from heterps_envs.problem import Problem
from heterps_envs.schedule.interleaved import is_interleaved, most_in_flight, route_shape
from heterps_envs.schedule.plan_shape import PlanShape


def in_flight_micro_batches(plan: Plan, shape: PlanShape | None = None) -> dict[str, int]:
    """For each stage, how many micro-batches it may hold between their forward and backward passes.

    The rule of `heterps_envs.closed_form.formula.in_flight`. Pipelines that share a stage, directly
    or through others, are counted together: replicas are the stages of equal layers among them, and
    behind a stage are all that begin after its last layer. Where a device has several stages of a
    route, the rule is that of `heterps_envs.schedule.interleaved`, again counted in devices.
    `Stage.in_flight` stands above the rule of 1F1B.

    Args:
        plan: What runs.
        shape: Its stages and routes, where they are known.
    """
    held = in_flight_of_stages(plan, shape or PlanShape.of(plan)).tolist()
    return dict(zip([stage.name for stage in plan.stages], held, strict=True))


def in_flight_of_stages(plan: Plan, shape: PlanShape) -> Integers:
    """(S,) the same in the order of the stages."""
    if plan.job.schedule == "gpipe":
        return shape.routed
    # Stages by component, then by layers.
    first, last = shape.layers.T
    apart = plan.num_layers + 1
    begins = shape.component * apart + first
    _, alike, counts = np.unique(begins * apart + last, return_inverse=True, return_counts=True)
    replicas, in_order = counts[alike], np.sort(begins)
    ends = np.searchsorted(in_order, (shape.component + 1) * apart)
    behind = ends - np.searchsorted(in_order, shape.component * apart + last, "right")
    share = -(-plan.job.num_micro_batches // replicas)
    most = np.minimum(share, -(-(replicas + behind) // replicas))
    if is_interleaved(plan):  # else the rule of 1F1B
        shapes = route_shape(plan)
        for index, stage in enumerate(plan.stages):
            trips = int(-(-2 * behind[index] // replicas[index])) + 1
            most[index] = most_in_flight(trips, *shapes[stage.name])
    chosen = np.array([stage.in_flight or 0 for stage in plan.stages], np.int64)
    return np.minimum(shape.routed, np.where(chosen > 0, chosen, most))


def routed_micro_batches(plan: Plan) -> dict[str, int]:
    """For each stage, how many micro-batches pass it in a step."""
    routed = PlanShape.of(plan).routed.tolist()
    return dict(zip([stage.name for stage in plan.stages], routed, strict=True))


def as_memory_allows(
    problem: Problem, plan: Plan, held: Mapping[str, int], wanted: Mapping[str, int]
) -> dict[str, int]:
    """For each stage, what is wanted as far as memory has room, and at least what it holds.

    Memory as planners count it; stages of one device share its room evenly.

    Args:
        problem: Where the bytes come from.
        plan: What runs.
        held: Micro-batches of which each stage keeps activations in any case.
        wanted: Of how many it would keep them; no more than pass it are.
    """
    most, share = dict(held), routed_micro_batches(plan)
    stages_on = Counter(stage.devices[0] for stage in plan.stages)
    room: dict[str, float] = {}
    activations: dict[tuple[str, str], float] = {}
    for stage in plan.stages:
        part = slice(stage.first_layer, stage.last_layer + 1)
        for name, own in problem.by_rank(stage):
            tables, key = own.tables, (stage.name, name)
            room.setdefault(name, float(tables.memory_bytes[problem.class_of[name]]))
            activations[key] = float(tables.activation_bytes[part].sum())
            room[name] -= float(tables.state_bytes[part].sum())
            room[name] -= held[stage.name] * activations[key]
    for stage in plan.stages:
        more = min(wanted[stage.name], share[stage.name]) - held[stage.name]
        for name in stage.devices:
            kept = activations.get((stage.name, name), 0.0)
            if kept > 0:
                spare = room[name] / stages_on[stage.devices[0]]
                more = min(more, max(int(spare / kept), 0))
        most[stage.name] += more
    return most
