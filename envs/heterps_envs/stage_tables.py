"""The cost tables of one plan: a class for each of its stages, with the links that it uses.

Where equal nodes share a device class, a link between two of its devices is fast inside a node and
slow between nodes. A placement does not say which it will be; a plan does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem


def stage_tables(problem: Problem, plan: Plan, ranges: Sequence[tuple[int, int]]) -> CostTables:
    """The tables: class i is stage i; of its links those to itself and to the next stage count.

    Args:
        problem: What the plan answers.
        plan: With one device for each stage and equal cuts in all pipelines.
        ranges: First and last layer of its stages, front first.
    """
    place = {layers: index for index, layers in enumerate(ranges)}
    devices: list[list[str]] = [[] for _ in ranges]
    for stage in plan.stages:
        devices[place[stage.first_layer, stage.last_layer]].append(stage.devices[0])
    messages: list[set[tuple[str, str]]] = [set() for _ in ranges]
    device_of = {stage.name: stage.devices[0] for stage in plan.stages}
    for pipeline in plan.pipelines:
        names = [device_of[name] for name in pipeline.stages]
        for index, pair in enumerate(pairwise(names)):
            messages[index].add(pair)
    size = len(ranges)
    latency_s, inverse_bandwidth = np.zeros((size, size)), np.zeros((size, size))
    for index, names in enumerate(devices):
        at = index, index
        latency_s[at], inverse_bandwidth[at] = problem.slowest_link(permutations(names, 2))
        if index + 1 < size:
            at = index, index + 1
            latency_s[at], inverse_bandwidth[at] = problem.slowest_link(messages[index])
    tables, kinds = problem.tables, [problem.class_of[names[0]] for names in devices]
    return replace(
        tables,
        forward_s=tables.forward_s[:, kinds],
        backward_s=tables.backward_s[:, kinds],
        optimizer_s=tables.optimizer_s[:, kinds],
        device_count=np.array([len(names) for names in devices]),
        memory_bytes=tables.memory_bytes[kinds],
        price_usd_per_hour=tables.price_usd_per_hour[kinds],
        latency_s=latency_s,
        inverse_bandwidth_s_per_byte=inverse_bandwidth,
        rings=None,
    )
