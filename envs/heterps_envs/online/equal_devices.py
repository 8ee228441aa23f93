"""Which of equal devices a new plan uses: those that hold most of what they need.

That is free to choose, as Malleus does (arXiv 2410.13333, section 5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.plan import Plan
from heterps_envs.online.held_state import Span, StatePart, span_of, spans_by_device, state_parts
from heterps_envs.problem import Problem


def keep_in_place(problem: Problem, old_plan: Plan, new_plan: Plan) -> Plan:
    """The same plan on those of the equal devices that hold most of what they need.

    Devices are equal when nothing in the problem tells them apart: their class, their node unless
    they are alone on it, and their links to all others. So the simulated step time stays the same
    to the last bit, and no fewer bytes could be moved.

    Args:
        problem: What the new plan was made for; it lacks devices that are lost.
        old_plan: Who holds what.
        new_plan: Whose devices are exchanged for equal ones.
    """
    held, needed = spans_by_device(old_plan), spans_by_device(new_plan)
    parts = state_parts(problem)
    num_bytes = np.array([part.num_bytes for part in parts], float)
    renamed: dict[str, str] = {}
    for group in _equal_devices(problem):
        roles = [name for name in group if name in needed]
        wanted = _edges(parts, [needed[role] for role in roles])
        there = _edges(parts, [held.get(name, {}) for name in group])
        starts = np.maximum(wanted[0][:, None], there[0])
        stays = np.maximum(np.minimum(wanted[1][:, None], there[1]) - starts, 0.0)
        overlap = stays @ num_bytes
        # Of equal overlaps the one that renames least; together these count less than a byte.
        for row, role in enumerate(roles):
            overlap[row, group.index(role)] += 0.5 / len(roles)
        rows, columns = linear_sum_assignment(overlap, maximize=True)
        renamed |= {roles[row]: group[column] for row, column in zip(rows, columns, strict=True)}
    if all(before == after for before, after in renamed.items()):
        return new_plan
    stages = tuple(
        stage.changed(devices=tuple(renamed[name] for name in stage.devices))
        for stage in new_plan.stages
    )
    return new_plan.changed(stages=stages)


def _edges(
    parts: Sequence[StatePart], devices: Sequence[Mapping[int, Span]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(devices, parts) each: from where to where of each part a device has it, as shares of it."""
    spans = [[span_of(part, layers) or (0.0, 0.0) for part in parts] for layers in devices]
    both = np.array(spans, float).reshape(len(devices), len(parts), 2)
    return both[..., 0], both[..., 1]


def _equal_devices(problem: Problem) -> list[list[str]]:
    """The cluster's devices in groups of equal ones."""
    nodes = {node.name: node for node in problem.cluster.nodes}
    on_node: Mapping[str, list[str]] = defaultdict(list)
    for device in problem.cluster.devices:
        on_node[device.node].append(device.name)
    groups: dict[tuple[int, str, str], list[list[str]]] = {}
    for device in problem.cluster.devices:
        is_alone = len(on_node[device.node]) == 1
        host = nodes[device.node].host.model_dump_json() if is_alone else ""
        kind = problem.class_of[device.name], "" if is_alone else device.node, host
        alike = groups.setdefault(kind, [])
        own = next((g for g in alike if _links_are_equal(problem, g[0], device.name)), None)
        if own is None:
            alike.append([device.name])
        else:
            own.append(device.name)
    return [group for alike in groups.values() for group in alike]


def _links_are_equal(problem: Problem, a: str, b: str) -> bool:
    """Whether two devices have the same links to and from all others, and between them."""

    def ends(first: str, second: str) -> tuple[Link, Link]:
        return problem.link(first, second), problem.link(second, first)

    there, back = ends(a, b)
    others = (device.name for device in problem.cluster.devices if device.name not in (a, b))
    return there == back and all(ends(a, other) == ends(b, other) for other in others)
