"""Bytes that planners count for a plan, in plain Python: what kernels and simulator agree with."""

from __future__ import annotations

import math
from collections import defaultdict

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.in_flight import in_flight_micro_batches
from heterps_envs.schedule.tied import tied_share


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
    for owner, users in problem.profile.tied_layers.items():
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
