"""The degrees that AMP enumerates, and what layers cost at each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.amp.order import Units, units_of
from heterps_agents.systems.amp.split import Layers
from heterps_agents.systems.degrees import at_degree, groups_in_order
from heterps_envs.problem import Problem


class Degrees(NamedTuple):
    """Of one plan: devices of a group, replicas of a stage, stages."""

    tensor_parallel: int
    replicas: int
    stages: int


def all_degrees(
    num_devices: int, num_layers: int, micro_batches: int, tensor_parallel: Iterable[int]
) -> Iterator[Degrees]:
    """Those that use all devices, with as many micro-batches for each replica.

    Args:
        num_devices: Of the cluster.
        num_layers: Each stage has one at least.
        micro_batches: Of a step.
        tensor_parallel: Allowed sizes of groups.
    """
    for degree in tensor_parallel:
        if num_devices % degree:
            continue
        groups = num_devices // degree
        for replicas in range(1, min(groups, micro_batches) + 1):
            stages = groups // replicas
            if groups % replicas == 0 and micro_batches % replicas == 0 and stages <= num_layers:
                yield Degrees(degree, replicas, stages)


def units_at(problem: Problem, degree: int) -> Units | None:
    """All devices as groups of one size, node by node; None where some would be left over."""
    nodes = {node.name: index for index, node in enumerate(problem.cluster.nodes)}
    names = sorted(
        problem.device_named,
        key=lambda name: (nodes[problem.device_named[name].node], problem.class_of[name]),
    )
    groups = groups_in_order(problem, names, degree)
    return None if groups is None else units_of(problem, groups)


def layers_at(problem: Problem, degree: int) -> Layers:
    """As AMP sees them: a layer takes the same everywhere, the mean over the devices."""
    found = at_degree(problem, degree)
    counts = np.array([entry.count for entry in problem.classes], float)
    mean = counts / counts.sum()
    # A micro-batch's activations go to the next stage, and their gradients come back.
    message_bytes = 2 * problem.tables.output_bytes
    return Layers(found.compute_s @ mean, found.gradient_bytes @ mean, message_bytes)
