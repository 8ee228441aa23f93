"""Oobleck's answer to lost devices, for plans on unlike devices.

Every pipeline is a group of devices with a template: the most even chain of its size. Lost devices
leave their groups; a group that cannot hold the model any more borrows, or is merged with others;
then each group gets the template for what it has. On unlike devices there is no least number of
them: a group is large enough if the model fits on it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from heterps_agents.finishing.chains import Chain, Column
from heterps_agents.recovery.chains import chains_of, plan_of_chains
from heterps_agents.systems.oobleck.regroup import regroup
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.problem import Problem


def template_plan(problem: Problem, plan: Plan, lost: Collection[str]) -> Plan | None:
    """Regroups the survivors, by the rule of Oobleck's code of 2023, and gives each group a chain.

    Devices that the plan does not use join the group that has fewest.

    Args:
        problem: Without the lost devices.
        plan: What ran.
        lost: Devices that are gone.

    Returns:
        The plan, or None where the model fits on no chain of all survivors in their order.
    """
    groups = _groups(plan, set(problem.device_named))
    if not groups:
        return None
    known = {name for group in groups for name in group}
    for device in problem.cluster.devices:
        if device.name not in known and device.name not in lost:
            min(groups, key=len).append(device.name)
    formed = regroup(groups, (), lambda group: _template_of(problem, group) is not None)
    found = [chain for group in formed if (chain := _template_of(problem, group)) is not None]
    return plan_of_chains(problem, plan, found, planner="templates")


def _template_of(problem: Problem, group: Sequence[str]) -> Chain | None:
    """One stage for each device."""
    return template(problem, [(name,) for name in group])


def _groups(plan: Plan, alive: Collection[str]) -> list[list[str]]:
    """Survivors of each chain, in the order of its stages; chains that share devices are one."""
    groups: list[list[str]] = []
    for chain in chains_of(plan):
        names = [name for column in chain for name in column.devices if name in alive]
        shared = [group for group in groups if set(group) & set(names)]
        groups = [group for group in groups if group not in shared]
        every = [name for group in (*shared, names) for name in group]
        groups.append(list(dict.fromkeys(every)))
    return [group for group in groups if group]


def template(problem: Problem, columns: Sequence[Sequence[str]]) -> Chain | None:
    """The most even chain over devices in their order: its slowest stage is as fast as possible.

    A dynamic programme from the back: for each column and each first layer, the slowest stage from
    there on. A column may stay without layers.

    Args:
        problem: With the devices.
        columns: Replicas of each stage, in the order of the model.

    Returns:
        The chain, or None where the model does not fit.
    """
    num_layers, size = problem.profile.num_layers, len(columns)
    best = np.full((size + 1, num_layers + 1), np.inf)
    best[size, num_layers] = 0.0
    ends = np.zeros((size, num_layers + 1), np.int64)
    behind = 0
    for index in range(size - 1, -1, -1):
        seconds = _span_s(problem, columns[index], behind)
        slowest = np.maximum(seconds, best[index + 1][None, :])
        ends[index] = slowest.argmin(axis=1)
        best[index] = slowest.min(axis=1)
        behind += len(columns[index])
    if np.isinf(best[0, 0]):
        return None
    chain, start = [], 0
    for index, devices in enumerate(columns):
        stop = int(ends[index, start])
        if stop > start:
            chain.append(Column(start, stop - 1, tuple(devices)))
        start = stop
    return tuple(chain)


def _span_s(problem: Problem, devices: Sequence[str], behind: int) -> Floats:
    """(L + 1, L + 1) seconds of the layers from a to before b on replicas; inf: too large.

    Replicas share the micro-batches in proportion to their speed.
    """
    tables = problem.tables
    held = in_flight(tables.num_micro_batches, tables.is_gpipe, len(devices), behind)
    needed = _prefix(tables.state_bytes + held * tables.activation_bytes)
    need = needed[None, :] - needed[:, None]
    order = np.arange(len(needed))
    is_backward = order[None, :] < order[:, None]
    speed, room = np.zeros_like(need), np.inf
    for device in devices:
        kind = problem.class_of[device]
        compute = _prefix(tables.compute_s[:, kind])
        speed += 1 / np.maximum(compute[None, :] - compute[:, None], 1e-30)
        room = min(room, float(tables.memory_bytes[kind]))
    seconds = 1 / speed
    seconds[order, order] = 0.0
    seconds[is_backward | (need > room)] = np.inf
    return seconds


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])
