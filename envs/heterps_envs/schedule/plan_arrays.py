"""A plan's costs and routes as arrays, as the compiled scheduler and simulator take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from heterps_configs.documents.cluster import HostTimes
from heterps_configs.documents.job import Optimizer
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Flags, Floats, Integers
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.compiled import kernel
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import PassKind
from heterps_envs.schedule.plan_shape import PlanShape
from heterps_envs.schedule.workload import stage_cost, stage_way, stage_ways

_PASSES: tuple[PassKind, ...] = ("forward", "backward", "backward-input", "backward-weight")


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
        shape: What of it the plan says: devices, layers and routes.
        ways: A stage of each way to be carried out (`heterps_envs.schedule.workload.stage_way`).
        way_of: (S,) which of them each stage is.
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
    shape: PlanShape
    ways: tuple[Stage, ...]
    way_of: Integers


def plan_arrays(problem: Problem, plan: Plan) -> PlanArrays:
    """Collects the arrays of a plan.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    check_plan(problem, plan)
    shape = PlanShape.of(plan)
    ways, way_of = stage_ways(problem, plan.stages)
    sizes = problem.job.micro_batch_sizes
    latency_s, s_per_byte = _links(problem, shape)
    processes = np.array([len(group) for group in shape.groups], np.int64)
    known, index = hosts_of(problem), problem.links.index
    heads = np.array([index[group[0]] for group in shape.groups], np.int64)
    # Each in one piece: kernels are compiled for such.
    action_s, send_s, receive_s, step_s = np.ascontiguousarray(known.seconds[:, heads])
    # Measured from end to end, a latency holds the host time of both.
    if send_s.any() or receive_s.any():
        latency_s = np.maximum(latency_s - send_s[:, None] - receive_s, 0.0)
    node, slowdown, step_slowdown = _shared_cores(problem, shape.groups, known, heads)
    costs = [stage_cost(problem, stage) for stage in ways]
    pass_s = np.array([[cost.seconds(kind) for kind in _PASSES] for cost in costs])
    return PlanArrays(
        stage_device=shape.stage_device,
        pass_s=pass_s[way_of],
        output_bytes=np.array([cost.output_bytes for cost in costs])[way_of],
        pipeline_of=shape.pipeline_of,
        share=np.array(sizes) / problem.job.micro_batch_size,
        front=shape.front,
        behind=shape.behind,
        first_stage=shape.routes[:, 0].copy(),
        latency_s=latency_s,
        s_per_byte=s_per_byte,
        copies=np.ceil(processes / processes[:, None]),
        processes=processes,
        action_s=action_s,
        send_s=send_s,
        receive_s=receive_s,
        step_s=step_s,
        optimizer_s=_optimizer_s(problem, plan, shape, ways, way_of),
        node=node,
        slowdown=slowdown,
        step_slowdown=step_slowdown,
        # Emulated links deliver by the sender's stamp, whenever the receiver asks.
        is_rendezvous=not known.is_emulated[heads].any(),
        shape=shape,
        ways=tuple(ways),
        way_of=way_of,
    )


class Hosts(NamedTuple):
    """What devices cost their hosts; emulated ones cost nothing.

    Attributes:
        is_emulated: (D,) of the cluster.
        seconds: (4, D) host seconds of a pass, of sending and receiving a message, and of a step.
        of_device: (D,) the host times of each; those of nothing for emulated ones.
        shares_cores: Whether passes disturb one another on any.
    """

    is_emulated: Flags
    seconds: Floats
    of_device: tuple[HostTimes, ...]
    shares_cores: bool


def hosts_of(problem: Problem) -> Hosts:
    """What the devices of a problem cost their hosts, found once."""
    found = problem.derived.get(hosts_of)
    if not isinstance(found, Hosts):
        host_of = {node.name: node.host for node in problem.cluster.nodes}
        devices, nothing = problem.cluster.devices, HostTimes()
        is_emulated = np.array([device.type.emulation is not None for device in devices])
        hosts = tuple(
            nothing if is_out else host_of[device.node]
            for device, is_out in zip(devices, is_emulated.tolist(), strict=True)
        )
        seconds = [(host.action_s, host.send_s, host.receive_s, host.step_s) for host in hosts]
        found = Hosts(
            is_emulated,
            np.array(seconds, float).T.copy(),
            hosts,
            any(_disturbs(problem, host) for host in hosts),
        )
        problem.derived[hosts_of] = found
    return found


def _disturbs(problem: Problem, host: HostTimes) -> bool:
    table = host.optimizer_slowdown_together.get(problem.job.optimizer)
    return bool(host.slowdown_together or table)


def _links(problem: Problem, shape: PlanShape) -> tuple[Floats, Floats]:
    """Latency and seconds per byte of the links that the routes use, in both directions.

    Every device of a group has all that the group sends. Device j of the group that receives gets
    it from device j of the one that sends, counted round; the slowest of these links decides.
    """
    index = problem.links.index
    degree = np.array([len(group) for group in shape.groups], np.int64)
    flat = np.array([index[name] for group in shape.groups for name in group], np.int64)
    latency_s, s_per_byte = np.zeros((2, len(degree), len(degree)))
    links = problem.links.by_node
    _link(shape.routes, shape.stage_device, flat, degree, links, latency_s, s_per_byte)
    return latency_s, s_per_byte


@kernel
def _link(
    routes: Any, stage_device: Any, flat: Any, degree: Any, links: Any, latency_s: Any,
    s_per_byte: Any,
) -> None:  # fmt: skip
    """Writes the links of all neighbours on routes; `links` is of `heterps_envs.node_links`."""
    ends = np.cumsum(degree)
    for route in range(len(routes)):
        for place in range(1, routes.shape[1]):
            if routes[route, place] < 0:
                break
            one, two = stage_device[routes[route, place - 1]], stage_device[routes[route, place]]
            if one == two or s_per_byte[one, two] > 0.0:
                continue
            for a, b in ((one, two), (two, one)):
                copies = -(-degree[b] // degree[a])
                for rank in range(degree[b]):
                    first = flat[ends[a] - degree[a] + rank % degree[a]]
                    second = flat[ends[b] - degree[b] + rank]
                    own, other = links.node_of[first], links.node_of[second]
                    own_s = links.latency_s[own, other]
                    bandwidth = links.bandwidth_bytes_per_s[own, other]
                    if own == other and first > second and links.is_directed[own]:
                        own_s, bandwidth = links.back_latency_s[own], links.back_bandwidth[own]
                    latency_s[a, b] = max(latency_s[a, b], own_s)
                    s_per_byte[a, b] = max(s_per_byte[a, b], copies * (1 / bandwidth))


def _optimizer_s(
    problem: Problem, plan: Plan, shape: PlanShape, ways: Sequence[Stage], way_of: Integers
) -> Floats:
    """(D,) of the device of each group that takes longest."""
    parts = state_parts(plan) if plan.sharded_state else np.ones(plan.num_layers)
    by_way = [_step_s(problem, stage, parts, is_shared=bool(plan.sharded_state)) for stage in ways]
    rows = np.zeros((len(ways), max(map(len, by_way))))
    for row, seconds in zip(rows, by_way, strict=True):
        row[: len(seconds)] = seconds
    total_s = np.zeros((len(shape.groups), rows.shape[1]))
    np.add.at(total_s, shape.stage_device, rows[way_of])
    return np.asarray(total_s.max(axis=1))


def _step_s(problem: Problem, stage: Stage, parts: Floats, *, is_shared: bool) -> tuple[float, ...]:
    """Seconds of the optimizer on those of a stage's devices that may take longest."""
    key = _step_s, stage_way(problem, stage)
    known = problem.derived.get(key)
    if isinstance(known, tuple) and not is_shared:
        return known
    part, found = slice(stage.first_layer, stage.last_layer + 1), []
    for name, own in problem.by_rank(stage):
        own_s = own.tables.optimizer_s[:, problem.class_of[name]][part]
        found.append(float((own_s / parts[part] if is_shared else own_s).sum()))
    if not is_shared:
        problem.derived[key] = tuple(found)
    return tuple(found)


def state_parts(plan: Plan) -> Floats:
    """(L,) into how many parts the optimizer state of each layer is divided: 1 where it is not."""
    parts, sharded = np.zeros(plan.num_layers), plan.sharded_layers
    for stage in plan.stages:
        parts[stage.first_layer : stage.last_layer + 1] += 1
    is_whole = [layer not in sharded for layer in range(plan.num_layers)]
    return np.where(is_whole, 1.0, parts)


def _shared_cores(
    problem: Problem, groups: Sequence[tuple[str, ...]], known: Hosts, heads: Integers
) -> tuple[Integers, Floats, Floats]:
    """Which devices disturb each other in passes, and how much more in optimizer steps."""
    on_node: dict[str, list[int]] = {}
    hosts = [known.of_device[head] for head in heads.tolist()] if known.shares_cores else []
    for index, host in enumerate(hosts):
        if _disturbs(problem, host):
            on_node.setdefault(problem.device_named[groups[index][0]].node, []).append(index)
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
