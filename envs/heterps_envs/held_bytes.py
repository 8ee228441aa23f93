"""What a device of a stage holds, as planners count it for a stage that they know.

A stage that keeps all counts by `heterps_envs.layer_costs.memory_rule`, as it does in tables. One
that computes layers again or offloads them counts as in the simulator at the worst moment of its
passes (`heterps_envs.simulator.memory_timeline`), and so does every stage under zero-bubble, whose
passes put off more than some layers save. Samples and messages are those of the rule: on shipped
models 0.15 GB more than the simulator finds (median), several where messages are large. Left out
are the copies of an all-reduce, as in the rule.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.pass_memory import held_in_passes
from heterps_envs.problem import Problem


class HeldBytes(NamedTuple):
    """Of n layers on one device: `state_bytes.sum()` and so many `kept_bytes` need the room.

    Attributes:
        room_bytes: Of the device, less what passes, samples and messages take.
        state_bytes: (n,) weights, their copies, gradients and optimizer state of each layer; by the
            rule under GPipe less what is never there beside all activations.
        kept_bytes: Of each micro-batch in flight.
    """

    room_bytes: float
    state_bytes: Floats
    kept_bytes: float


def held_bytes(own: Problem, stage: Stage, kind: int, parts: Floats) -> HeldBytes:
    """What a device of a stage has room for, and what it holds.

    Args:
        own: The problem as the device has it (`Problem.for_stage`).
        stage: The stage.
        kind: Class of the device.
        parts: (L,) into how many parts the optimizer state of each layer is divided.
    """
    layers = slice(stage.first_layer, stage.last_layer + 1)
    job, tables, rule = own.job, own.tables, own.memory_rule
    moments = own.trained_parameters[layers] * job.optimizer_bytes_per_parameter
    state = tables.state_bytes[layers] - moments * (1 - 1 / parts[layers])
    is_zero_bubble = job.schedule == "zero-bubble"
    if not (stage.recompute_layers or stage.offloaded_layers or is_zero_bubble):
        kept = float(tables.activation_bytes[layers].sum())
        return HeldBytes(float(tables.memory_bytes[kind]), state, kept)
    memory, gradients = own.layer_memory, own.gradient_bytes[layers]
    kept, beside = held_in_passes(memory, stage, kind, gradients, job.schedule)
    beside += float(memory.workspace_bytes[layers, kind].max())
    beside += float(rule.message_bytes[kind])
    if stage.offloaded_layers:
        beside += float(np.max(own.offload.passing_bytes[list(stage.offloaded_layers), kind]))
    usable = own.usable_bytes(own.classes[kind].devices[0].name)
    return HeldBytes(usable - beside, state + rule.apart_bytes[layers], kept)
