"""How many micro-batches a stage may hold between their forward and backward passes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping

from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.formula import in_flight
from heterps_envs.problem import Problem
from heterps_envs.schedule.interleaved import is_interleaved, most_in_flight, route_shape


def in_flight_micro_batches(plan: Plan) -> dict[str, int]:
    """For each stage, how many micro-batches it may hold between their forward and backward passes.

    The rule of `heterps_envs.closed_form.formula.in_flight`. Pipelines that share a stage, directly
    or through others, are counted together: replicas are the stages of equal layers among them, and
    behind a stage are all that begin after its last layer. Where a device has several stages of a
    route, the rule is that of `heterps_envs.schedule.interleaved`, again counted in devices.
    `Stage.in_flight` stands above the rule of 1F1B.
    """
    share = routed_micro_batches(plan)
    if plan.job.schedule == "gpipe":
        return share
    shape = route_shape(plan) if is_interleaved(plan) else {}  # else the rule of 1F1B
    held = {}
    stage_named = {stage.name: stage for stage in plan.stages}
    for pipelines in plan.groups():
        stages = [stage_named[name] for name in {n for pipe in pipelines for n in pipe.stages}]
        alike = Counter((stage.first_layer, stage.last_layer) for stage in stages)
        begins = sorted(stage.first_layer for stage in stages)
        for stage in stages:
            replicas = alike[stage.first_layer, stage.last_layer]
            behind = len(begins) - bisect_right(begins, stage.last_layer)
            most = in_flight(plan.job.num_micro_batches, False, replicas, behind)
            if shape:
                most = most_in_flight(-(-2 * behind // replicas) + 1, *shape[stage.name])
            most = stage.in_flight or most
            held[stage.name] = min(share[stage.name], most)
    return held


def routed_micro_batches(plan: Plan) -> dict[str, int]:
    """For each stage, how many micro-batches pass it in a step."""
    share: dict[str, int] = dict.fromkeys((stage.name for stage in plan.stages), 0)
    for pipeline in plan.pipelines:
        for name in pipeline.stages:
            share[name] += len(pipeline.micro_batches)
    return share


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
