"""The cost tables of one plan: a class for each of its stages, with the links that it uses.

Where equal nodes share a device class, a link between two of its devices is fast inside a node and
slow between nodes. A placement does not say which it will be; a plan does. Nor does it say which
layers of a stage are computed again or offloaded, and what share of a layer each device of a group
has: a plan may mix them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Floats
from heterps_envs.cost_tables import CostTables
from heterps_envs.held_bytes import held_bytes
from heterps_envs.problem import Problem

Ranges = Sequence[tuple[int, int]]


def has_strategies(plan: Plan) -> bool:
    """Whether any stage is more than layers on one device that keep all that they save."""
    return bool(plan.sharded_state) or any(map(_is_special, plan.stages))


def replicas_are_alike(plan: Plan) -> bool:
    """Whether stages of equal layers are carried out in the same way."""
    found: dict[tuple[int, int], Stage] = {}
    for stage in plan.stages:
        first = found.setdefault((stage.first_layer, stage.last_layer), stage)
        # Of thousands of replicas most are plain ones.
        is_plain = not (_is_special(first) or _is_special(stage))
        if not is_plain and _strategy(first) != _strategy(stage):
            return False
    return True


def _is_special(stage: Stage) -> bool:
    return bool(len(stage.devices) > 1 or stage.recompute_layers or stage.offloaded_layers)


def _strategy(stage: Stage) -> tuple[object, ...]:
    again, away = set(stage.recompute_layers), set(stage.offloaded_layers)
    return stage.split, again, away


def stage_tables(problem: Problem, plan: Plan, ranges: Ranges) -> CostTables:
    """The tables: class i is stage i; of its links those to itself and to the next stage count.

    Where no nodes are equal, links are those of the problem's own tables.

    Args:
        problem: What the plan answers.
        plan: With equal cuts in all pipelines and replicas that are alike.
        ranges: First and last layer of its stages, front first.
    """
    place = {layers: index for index, layers in enumerate(ranges)}
    devices: list[list[str]] = [[] for _ in ranges]
    for stage in plan.stages:
        devices[place[stage.first_layer, stage.last_layer]].append(stage.devices[0])
    tables, kinds = problem.tables, [problem.class_of[names[0]] for names in devices]
    if problem.merges_nodes:
        latency_s, inverse_bandwidth = _own_links(problem, plan, devices)
        rings = None
    else:
        latency_s = tables.latency_s[np.ix_(kinds, kinds)]
        inverse_bandwidth = tables.inverse_bandwidth_s_per_byte[np.ix_(kinds, kinds)]
        rings = tables.rings and tables.rings.of_classes(kinds)
    found = replace(
        tables,
        forward_s=tables.forward_s[:, kinds],
        backward_s=tables.backward_s[:, kinds],
        optimizer_s=tables.optimizer_s[:, kinds],
        device_count=np.array([len(names) for names in devices]),
        memory_bytes=tables.memory_bytes[kinds],
        price_usd_per_hour=tables.price_usd_per_hour[kinds],
        latency_s=latency_s,
        inverse_bandwidth_s_per_byte=inverse_bandwidth,
        rings=rings,
    )
    return _with_strategies(problem, plan, ranges, found) if has_strategies(plan) else found


def _own_links(
    problem: Problem, plan: Plan, devices: Sequence[Sequence[str]]
) -> tuple[Floats, Floats]:
    """(S, S) the slowest link inside each stage, and between it and the next one.

    Of a group the first device stands for all.
    """
    size = len(devices)
    device_of = {stage.name: stage.devices[0] for stage in plan.stages}
    # Hundreds of routes use the same cut; each of its links counts once.
    columns = list(zip(*(pipeline.stages for pipeline in plan.pipelines), strict=True))
    on_devices = [[device_of[name] for name in column] for column in columns]
    messages = [set(zip(*both, strict=True)) for both in pairwise(on_devices)]
    latency_s, inverse_bandwidth = np.zeros((size, size)), np.zeros((size, size))
    for index, replicas in enumerate(devices):
        at = index, index
        latency_s[at], inverse_bandwidth[at] = problem.slowest_link_inside(replicas)
        if index + 1 < size:
            at = index, index + 1
            latency_s[at], inverse_bandwidth[at] = problem.slowest_link(messages[index])
    return latency_s, inverse_bandwidth


def _with_strategies(
    problem: Problem, plan: Plan, ranges: Ranges, tables: CostTables
) -> CostTables:
    """The tables with how each stage is carried out: a group, layers computed again, and so on.

    Seconds and bytes are those of the device of a group that has most. A message takes as many
    copies as the larger group is times the smaller one in one direction, and one in the other: on
    average half of that sum.
    """
    examples = [next(s for s in plan.stages if s.first_layer == first) for first, _ in ranges]
    forward_s, backward_s, optimizer_s = np.zeros((3, problem.profile.num_layers, len(ranges)))
    state, gradient, kept = np.zeros((3, problem.profile.num_layers))
    memory_bytes, sharded = np.zeros(len(ranges)), plan.sharded_layers
    is_sharded = np.array([layer in sharded for layer in range(plan.num_layers)])
    for index, ((first, last), example) in enumerate(zip(ranges, examples, strict=True)):
        part, own = slice(first, last + 1), problem.for_stage(example)
        of_group, kind = own.tables, problem.class_of[example.devices[0]]
        again, away = list(example.recompute_layers), list(example.offloaded_layers)
        forward_s[part, index] = of_group.forward_s[part, kind]
        backward_s[part, index] = of_group.backward_s[part, kind]
        backward_s[again, index] += of_group.forward_s[again, kind]
        forward_s[away, index] += own.offload.forward_s[away, kind]
        backward_s[away, index] += own.offload.backward_s[away, kind]
        parts = np.where(is_sharded, tables.device_count[index], 1.0)
        optimizer_s[part, index] = of_group.optimizer_s[part, kind] / parts[part]
        gradient[part] = of_group.gradient_bytes[part]
        memory_bytes[index], state[part], kept[first] = held_bytes(own, example, kind, parts)
    degrees, inverse = [stage.degree for stage in examples], tables.inverse_bandwidth_s_per_byte
    inverse = inverse.copy()
    for index, (one, two) in enumerate(pairwise(degrees)):
        inverse[index, index + 1] *= (math.ceil(one / two) + math.ceil(two / one)) / 2
    rings = tables.rings
    return replace(
        tables,
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s,
        state_bytes=state,
        gradient_bytes=gradient,
        activation_bytes=kept,
        memory_bytes=memory_bytes,
        price_usd_per_hour=tables.price_usd_per_hour * degrees,
        inverse_bandwidth_s_per_byte=inverse,
        rings=rings and rings._replace(node_size=rings.node_size // degrees),
    )
