"""How many bytes of gradients a bucket has, and how many of them are copied to be summed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_envs.layer_costs.memory_rule import LARGE_GRADIENT_BYTES, REDUCE_COPY_BYTES
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import ReduceBucket
from heterps_envs.schedule.tied import tied_share


def held_problems(problem: Problem, bucket: ReduceBucket) -> list[Problem]:
    """The problem as devices with most of the layers have it: those of the smallest groups."""
    if not bucket.groups:
        return [problem]
    ways = set(ways_to_hold(bucket))
    return [problem.keeping(own).at_degree(n, share) for n, share, own in ways]


def ways_to_hold(bucket: ReduceBucket) -> Iterator[tuple[int, GroupSlice | None, tuple[int, ...]]]:
    """Of each group: its degree, the largest share, the layers that it does not split."""
    whole = bucket.whole_layers or ((),) * len(bucket.groups)
    return zip(map(len, bucket.groups), bucket.slices, whole, strict=True)


def reduce_bytes(problem: Problem, bucket: ReduceBucket) -> float:
    """Bytes of the gradients in one bucket; tied parameters count once, with their users.

    Of tensor-parallel groups those on the device that has most.
    """
    contents = bucket.layers, bucket.tied_only, bucket.own_only
    key = reduce_bytes, contents, frozenset(ways_to_hold(bucket))
    known = problem.derived.get(key)
    if not isinstance(known, float):
        known = max(_gradient_bytes(each, bucket) for each in held_problems(problem, bucket))
        problem.derived[key] = known
    return known


def _gradient_bytes(problem: Problem, bucket: ReduceBucket) -> float:
    gradient, profile = problem.tables.gradient_bytes, problem.profile
    total = float(sum(gradient[layer] for layer in bucket.layers))
    for owner, users in profile.tied_layers.items():
        tied = {user: float(gradient[user]) * tied_share(profile, user) for user in users}
        if owner in bucket.layers:
            total -= min(max(tied.values()), gradient[owner])
        total -= sum(tied[user] for user in users if user in bucket.layers)
        if users[0] in bucket.layers and users[0] not in bucket.own_only:  # then all of them are
            total += max(tied.values())
        total -= sum(gradient[user] - tied[user] for user in users if user in bucket.tied_only)
    return total


def reduce_copy_bytes(
    problem: Problem, bucket: ReduceBucket, held: Sequence[Problem] = ()
) -> float:
    """Bytes of the gradients that are there twice for a moment when one bucket's all-reduce begins.

    Large gradients are not copied, others piece by piece; between unlike groups all are.

    Args:
        problem: Of whole layers.
        bucket: The bucket.
        held: The problem as its devices have it; by default as those do that have most.
    """
    is_alike = len(set(ways_to_hold(bucket))) < 2
    small = max(
        _gradient_bytes(each, bucket) - (_large_bytes(each, bucket) if is_alike else 0)
        for each in held or held_problems(problem, bucket)
    )
    return min(max(small, 0.0), float(REDUCE_COPY_BYTES))


def _large_bytes(problem: Problem, bucket: ReduceBucket) -> float:
    """Bytes of the bucket's gradients that are summed where they lie, as far as they are known."""
    layers, num_bytes = problem.profile.layers, problem.job.weight_bytes_per_parameter
    sizes_of = {layer: list(layers[layer].parameter_sizes) for layer in bucket.layers}
    # A tied parameter is in the bucket of its users, once.
    for owner, users in problem.profile.tied_layers.items():
        shared = layers[users[0]].tied_parameters
        for layer in (owner, *users):
            own = sizes_of.get(layer, [])
            is_known = shared in own
            if is_known:
                own.remove(shared)
            if layer in bucket.tied_only:
                own.clear()
            if is_known and layer == users[0] and layer not in bucket.own_only:
                own.append(shared)
    large = [
        size * num_bytes
        for sizes in sizes_of.values()
        for size in sizes
        if size * num_bytes >= LARGE_GRADIENT_BYTES
    ]
    return float(sum(large))
