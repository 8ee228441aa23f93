"""Gradient all-reduce: which layers are reduced together, how many bytes, how many seconds."""

from __future__ import annotations

from collections import defaultdict

from heterps_configs.plan import Plan
from heterps_envs.actions import ReduceBucket
from heterps_envs.memory_rule import REDUCE_COPY_BYTES
from heterps_envs.problem import Problem
from heterps_envs.workload import tied_layers, tied_share


def reduce_buckets(problem: Problem, plan: Plan) -> tuple[ReduceBucket, ...]:
    """Layers grouped by the devices that hold their gradients, where there are several, back first.

    A tied layer stands for the parameters that it shares: its devices are those of the owner of
    the parameters and of all their users.
    """
    owners: dict[int, set[str]] = defaultdict(set)
    for stage in plan.stages:
        for layer in stage.layers:
            owners[layer].update(stage.devices)
    for owner, users in tied_layers(problem.profile).items():
        together = owners[owner].union(*(owners[user] for user in users))
        owners.update(dict.fromkeys(users, together))
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for layer in range(plan.num_layers):
        if len(owners[layer]) > 1:
            groups[tuple(d for d in problem.device_named if d in owners[layer])].append(layer)
    buckets = [ReduceBucket(devices, tuple(layers)) for devices, layers in groups.items()]
    return tuple(sorted(buckets, key=lambda bucket: bucket.layers, reverse=True))


def reduce_bytes(problem: Problem, bucket: ReduceBucket) -> float:
    """Bytes of the gradients in one bucket; tied parameters count once, with their users."""
    gradient = problem.tables.gradient_bytes
    total = float(sum(gradient[layer] for layer in bucket.layers))
    for owner, users in tied_layers(problem.profile).items():
        shared = max(gradient[user] * tied_share(problem.profile, user) for user in users)
        if owner in bucket.layers:
            total -= min(shared, gradient[owner])
        if users[0] in bucket.layers:  # then all of them are
            total += shared - sum(gradient[user] for user in users)
    return total


def reduce_copy_bytes(problem: Problem, bucket: ReduceBucket) -> float:
    """Bytes of the copies that the all-reduce of one bucket holds at most."""
    return min(reduce_bytes(problem, bucket), float(REDUCE_COPY_BYTES))


def reduce_s(problem: Problem, bucket: ReduceBucket) -> float:
    """Seconds of one ring all-reduce over the bucket's devices, in their order.

    Its pieces (`REDUCE_COPY_BYTES`) overlap: the latency counts once.
    """
    devices, n = bucket.devices, len(bucket.devices)
    links = [problem.link(a, b) for a, b in zip(devices, devices[1:] + devices[:1], strict=True)]
    bandwidth = min(link.bandwidth_bytes_per_s for link in links)
    latency_s = max(link.latency_s for link in links)
    return 2 * (n - 1) * (latency_s + reduce_bytes(problem, bucket) / n / bandwidth)
