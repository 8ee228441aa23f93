"""Memory: what a plan needs on every device, and why a problem has no plan."""

from __future__ import annotations

import math
from collections import defaultdict

from heterps_configs.documents.plan import Plan, Stage
from heterps_envs.closed_form.formula import in_flight
from heterps_envs.problem import Problem
from heterps_envs.schedule.interleaved import is_interleaved, most_in_flight, route_shape
from heterps_envs.schedule.tied import tied_layers, tied_share


def in_flight_micro_batches(plan: Plan) -> dict[str, int]:
    """For each stage, how many micro-batches it may hold between their forward and backward passes.

    The rule of `heterps_envs.closed_form.formula.in_flight`. Pipelines that share a stage, directly
    or through others, are counted together: replicas are the stages of equal layers among them, and
    behind a stage are all that begin after its last layer. Where a device has several stages of a
    route, the rule is that of `heterps_envs.schedule.interleaved`, again counted in devices.
    """
    share: dict[str, int] = defaultdict(int)
    for pipeline in plan.pipelines:
        for name in pipeline.stages:
            share[name] += len(pipeline.micro_batches)
    if plan.job.schedule == "gpipe":
        return dict(share)
    shape = route_shape(plan) if is_interleaved(plan) else {}  # else the rule of 1F1B
    held = {}
    for stages in _connected(plan):
        for stage in stages:
            replicas = sum(other.layers == stage.layers for other in stages)
            behind = sum(other.first_layer > stage.last_layer for other in stages)
            most = in_flight(plan.job.num_micro_batches, False, replicas, behind)
            if shape:
                most = most_in_flight(-(-2 * behind // replicas) + 1, *shape[stage.name])
            held[stage.name] = min(share[stage.name], most)
    return held


def _connected(plan: Plan) -> list[list[Stage]]:
    """The stages of pipelines that share a stage, directly or through others."""
    group = {stage.name: stage.name for stage in plan.stages}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for pipeline in plan.pipelines:
        for name in pipeline.stages:
            group[root(name)] = root(pipeline.stages[0])
    together: dict[str, list[Stage]] = defaultdict(list)
    for stage in plan.stages:
        together[root(stage.name)].append(stage)
    return list(together.values())


def plan_memory_bytes(problem: Problem, plan: Plan) -> dict[str, int]:
    """Bytes that planners count for every device that the plan uses.

    Weights, gradients and optimizer state of its layers, the activations of the micro-batches that
    are in flight, and the reserve of `heterps_envs.layer_costs.memory_rule`: never below the peak
    that `heterps_envs.simulator.memory_timeline` finds, with the exceptions that the rule names.
    Parameters that several layers of one device share are counted once.
    """
    tables, held = problem.tables, in_flight_micro_batches(plan)
    need: dict[str, float] = defaultdict(float)
    layers: dict[str, set[int]] = defaultdict(set)
    for stage in plan.stages:
        part = slice(stage.first_layer, stage.last_layer + 1)
        activations = held[stage.name] * tables.activation_bytes[part].sum()
        for device in stage.devices:
            need[device] += float(tables.state_bytes[part].sum() + activations)
            layers[device].update(stage.layers)
    for owner, users in tied_layers(problem.profile).items():
        for device, present in layers.items():
            sizes = sorted(
                float(tables.state_bytes[user]) * tied_share(problem.profile, user)
                for user in users
                if user in present
            )
            need[device] -= sum(sizes if owner in present else sizes[:-1])
    reserve = problem.memory_rule.reserve_bytes
    return {
        device: math.ceil(value + reserve[problem.class_of[device]])
        for device, value in need.items()
    }
