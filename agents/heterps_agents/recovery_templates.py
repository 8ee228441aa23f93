"""Oobleck's answer to lost devices, for plans on unlike devices.

Every pipeline is a group of devices with a template: the most even chain of its size. Lost devices
leave their groups; a group that cannot hold the model any more borrows, or is merged with others;
then each group gets the template for what it has. On unlike devices there is no least number of
them: a group is large enough if the model fits on it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from heterps_agents.recovery_chains import Chain, Column, chains_of, plan_of_chains
from heterps_agents.templates_regroup import regroup
from heterps_configs.plan import Plan
from heterps_envs.closed_form import in_flight
from heterps_envs.problem import Floats, Problem


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
    formed = regroup(groups, (), lambda group: template(problem, group) is not None)
    found = [chain for group in formed if (chain := template(problem, group)) is not None]
    return plan_of_chains(problem, plan, found, planner="templates")


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


def template(problem: Problem, devices: Sequence[str]) -> Chain | None:
    """The most even chain over devices in their order: its slowest stage is as fast as possible.

    A dynamic programme from the back: for each device and each first layer, the slowest stage from
    there on. A device may stay without layers.

    Args:
        problem: With the devices.
        devices: In the order of the model.

    Returns:
        The chain, or None where the model does not fit.
    """
    num_layers, size = problem.profile.num_layers, len(devices)
    best = np.full((size + 1, num_layers + 1), np.inf)
    best[size, num_layers] = 0.0
    ends = np.zeros((size, num_layers + 1), np.int64)
    for index in range(size - 1, -1, -1):
        seconds = _span_s(problem, devices[index], size - 1 - index)
        slowest = np.maximum(seconds, best[index + 1][None, :])
        ends[index] = slowest.argmin(axis=1)
        best[index] = slowest.min(axis=1)
    if np.isinf(best[0, 0]):
        return None
    columns, start = [], 0
    for index, device in enumerate(devices):
        stop = int(ends[index, start])
        if stop > start:
            columns.append(Column(start, stop - 1, (device,)))
        start = stop
    return tuple(columns)


def _span_s(problem: Problem, device: str, behind: int) -> Floats:
    """(L + 1, L + 1) seconds of the layers from a to before b on a device; inf: too large."""
    tables, kind = problem.tables, problem.class_of[device]
    held = in_flight(tables.num_micro_batches, tables.is_gpipe, 1, behind)
    compute = _prefix(tables.compute_s[:, kind])
    needed = _prefix(tables.state_bytes + held * tables.activation_bytes)
    seconds = compute[None, :] - compute[:, None]
    too_large = needed[None, :] - needed[:, None] > tables.memory_bytes[kind]
    order = np.arange(len(compute))
    seconds[too_large | (order[None, :] < order[:, None])] = np.inf
    return seconds


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])
