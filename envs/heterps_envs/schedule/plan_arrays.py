"""A plan's costs and routes as arrays, as the compiled scheduler and simulator take them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.cluster import HostTimes
from heterps_configs.documents.job import Optimizer
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.workload import stage_cost


class PlanArrays(NamedTuple):
    """D devices, S stages, M micro-batches, P pipelines.

    The devices are those of `Plan.device_groups`: a tensor-parallel group is one of them.

    Attributes:
        stage_device: (S,) index of the stage's device.
        pass_s: (S, 4) compute seconds of a full micro-batch: forward, whole backward, backward for
            inputs, backward for parameters.
        output_bytes: (S,) of a full micro-batch over the cut behind the stage.
        pipeline_of: (M,) route of each micro-batch.
        share: (M,) samples over those of a full micro-batch.
        front: (P, S) the stage in front of a stage on a route; -1 where there is none.
        behind: (P, S) the stage behind it.
        first_stage: (P,)
        latency_s: (D, D) from one device to another.
        s_per_byte: (D, D) the same link; where a group sends to a larger one, a device sends one
            copy after the other, to as many devices as get theirs from it.
        copies: (D, D) how many those are.
        processes: (D,) devices of each group.
        action_s: (D,) host seconds of a pass; 0 for emulated devices.
        send_s: (D,) host seconds of sending a message; 0 for emulated devices.
        receive_s: (D,) host seconds of receiving one; 0 for emulated devices.
        step_s: (D,) host seconds of a step; 0 for emulated devices.
        optimizer_s: (D,) seconds of the optimizer step.
        node: (D,) node whose cores the device's passes share with others; -1: nobody disturbs it.
        slowdown: (nodes, k) how much slower each of 1, 2, .. passes runs at a time.
        step_slowdown: (nodes, k) by how much more 1, 2, .. optimizer steps disturb one another.
        is_rendezvous: A message leaves only when its receiver has asked for it.
    """

    stage_device: Integers
    pass_s: Floats
    output_bytes: Floats
    pipeline_of: Integers
    share: Floats
    front: Integers
    behind: Integers
    first_stage: Integers
    latency_s: Floats
    s_per_byte: Floats
    copies: Floats
    processes: Integers
    action_s: Floats
    send_s: Floats
    receive_s: Floats
    step_s: Floats
    optimizer_s: Floats
    node: Integers
    slowdown: Floats
    step_slowdown: Floats
    is_rendezvous: bool


def plan_arrays(problem: Problem, plan: Plan) -> PlanArrays:
    """Collects the arrays of a plan.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    check_plan(problem, plan)
    groups = plan.device_groups
    devices = {group[0]: index for index, group in enumerate(groups)}
    stages = {stage.name: index for index, stage in enumerate(plan.stages)}
    costs = [stage_cost(problem, stage) for stage in plan.stages]
    sizes = problem.job.micro_batch_sizes
    routes = [[stages[name] for name in pipeline.stages] for pipeline in plan.pipelines]
    pipeline_of = np.zeros(len(sizes), np.int64)
    front, behind = np.full((2, len(routes), len(stages)), -1, np.int64)
    for index, (pipeline, route) in enumerate(zip(plan.pipelines, routes, strict=True)):
        pipeline_of[list(pipeline.micro_batches)] = index
        front[index, route[1:]] = route[:-1]
        behind[index, route[:-1]] = route[1:]
    stage_device = np.array([devices[cost.device] for cost in costs], np.int64)
    latency_s, s_per_byte = _links(problem, groups, routes, stage_device)
    processes = np.array([len(group) for group in groups], np.int64)
    emulated = [problem.device_named[name].type.emulation is not None for name in devices]
    host_of = {node.name: node.host for node in problem.cluster.nodes}
    hosts = [
        HostTimes() if is_emulated else host_of[problem.device_named[name].node]
        for name, is_emulated in zip(devices, emulated, strict=True)
    ]
    send_s = np.array([host.send_s for host in hosts], float)
    receive_s = np.array([host.receive_s for host in hosts], float)
    # Measured from end to end, a latency holds the host time of both.
    latency_s = np.maximum(latency_s - send_s[:, None] - receive_s, 0.0)
    node, slowdown, step_slowdown = _shared_cores(problem, groups, hosts)
    return PlanArrays(
        stage_device=stage_device,
        pass_s=np.array(
            [
                [
                    cost.seconds(kind)
                    for kind in ("forward", "backward", "backward-input", "backward-weight")
                ]
                for cost in costs
            ]
        ),
        output_bytes=np.array([cost.output_bytes for cost in costs]),
        pipeline_of=pipeline_of,
        share=np.array([size / problem.job.micro_batch_size for size in sizes]),
        front=front,
        behind=behind,
        first_stage=np.array([route[0] for route in routes], np.int64),
        latency_s=latency_s,
        s_per_byte=s_per_byte,
        copies=np.ceil(processes / processes[:, None]),
        processes=processes,
        action_s=np.array([host.action_s for host in hosts], float),
        send_s=send_s,
        receive_s=receive_s,
        step_s=np.array([host.step_s for host in hosts], float),
        optimizer_s=_optimizer_s(problem, plan),
        node=node,
        slowdown=slowdown,
        step_slowdown=step_slowdown,
        # Emulated links deliver by the sender's stamp, whenever the receiver asks.
        is_rendezvous=not any(emulated),
    )


def _links(
    problem: Problem,
    groups: Sequence[tuple[str, ...]],
    routes: list[list[int]],
    stage_device: Integers,
) -> tuple[Floats, Floats]:
    """Latency and seconds per byte of the links that the routes use, in both directions.

    Every device of a group has all that the group sends. Device j of the group that receives gets
    it from device j of the one that sends, counted round; the slowest of these links decides.
    """
    latency_s, s_per_byte = np.zeros((2, len(groups), len(groups)))
    pairs = {
        (int(stage_device[a]), int(stage_device[b])) for route in routes for a, b in pairwise(route)
    }
    devices = [[problem.device_named[name] for name in group] for group in groups]
    between = problem.links.between
    for a, b in pairs | {(b, a) for a, b in pairs}:
        if a != b:
            senders, receivers = devices[a], devices[b]
            if len(senders) == len(receivers) == 1:  # as most are; there may be many thousands
                link = between(senders[0], receivers[0])
                latency_s[a, b], s_per_byte[a, b] = link.latency_s, 1 / link.bandwidth_bytes_per_s
                continue
            copies = -(-len(receivers) // len(senders))
            links = [
                between(senders[rank % len(senders)], device)
                for rank, device in enumerate(receivers)
            ]
            latency_s[a, b] = max(link.latency_s for link in links)
            s_per_byte[a, b] = copies * max(1 / link.bandwidth_bytes_per_s for link in links)
    return latency_s, s_per_byte


def _optimizer_s(problem: Problem, plan: Plan) -> Floats:
    """(D,) of the device of each group that takes longest."""
    seconds = defaultdict[str, float](float)
    parts = state_parts(plan) if plan.sharded_state else np.ones(plan.num_layers)
    for stage in plan.stages:
        for name, own in problem.by_rank(stage):
            column = own.tables.optimizer_s[:, problem.class_of[name]]
            own_s = column[stage.first_layer : stage.last_layer + 1]
            if plan.sharded_state:
                own_s = own_s / parts[stage.first_layer : stage.last_layer + 1]
            seconds[name] += float(own_s.sum())
    return np.array([max(seconds[name] for name in group) for group in plan.device_groups])


def state_parts(plan: Plan) -> Floats:
    """(L,) into how many parts the optimizer state of each layer is divided: 1 where it is not."""
    parts, sharded = np.zeros(plan.num_layers), plan.sharded_layers
    for stage in plan.stages:
        parts[stage.first_layer : stage.last_layer + 1] += 1
    is_whole = [layer not in sharded for layer in range(plan.num_layers)]
    return np.where(is_whole, 1.0, parts)


def _shared_cores(
    problem: Problem, groups: Sequence[tuple[str, ...]], hosts: list[HostTimes]
) -> tuple[Integers, Floats, Floats]:
    """Which devices disturb each other in passes, and how much more in optimizer steps."""
    on_node: dict[str, list[int]] = {}
    for index, (group, host) in enumerate(zip(groups, hosts, strict=True)):
        if host.slowdown_together or host.optimizer_slowdown_together.get(problem.job.optimizer):
            on_node.setdefault(problem.device_named[group[0]].node, []).append(index)
    node = np.full(len(groups), -1, np.int64)
    most = [sum(len(groups[index]) for index in members) for members in on_node.values()]
    shape = max(len(on_node), 1), max(most, default=1)
    slowdown, step_slowdown = np.ones((2, *shape))
    for index, members in enumerate(on_node.values()):
        node[members] = index
        host = hosts[members[0]]
        for k in range(1, shape[1] + 1):
            slowdown[index, k - 1] = slowdown_of(host, k)
            step_factor = optimizer_slowdown_of(host, problem.job.optimizer, k)
            step_slowdown[index, k - 1] = step_factor / slowdown_of(host, k)
    return node, slowdown, step_slowdown


def slowdown_of(host: HostTimes, together: int) -> float:
    """How much slower each of some processes computes while all of them do."""
    return _entry(host.slowdown_together, together)


def optimizer_slowdown_of(host: HostTimes, optimizer: Optimizer, together: int) -> float:
    """How much slower the optimizer step of each of some processes is while all are in theirs."""
    found = host.optimizer_slowdown_together.get(optimizer)
    return _entry(found or host.slowdown_together, together)


def _entry(table: tuple[float, ...], together: int) -> float:
    if not table:
        return 1.0
    if together <= len(table):
        return table[together - 1]
    return table[-1] * together / len(table)
