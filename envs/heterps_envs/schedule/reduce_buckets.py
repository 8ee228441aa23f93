"""Gradient all-reduce: which layers are reduced together, how many bytes, how many seconds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import numpy as np

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Flags
from heterps_envs.layer_costs.group_slice import GroupSlice, largest_slice
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import ReduceBucket
from heterps_envs.schedule.plan_shape import PlanShape
from heterps_envs.schedule.tied import has_own, tied_share

# A bucket of gradients that leaves early has as many bytes as its links carry in this many
# latencies, times its devices: latency is a tenth of it. But at least 1 MiB, because each costs
# the host some time, and at least one layer; no more are waited for than 25 MiB, the bucket of
# PyTorch's DistributedDataParallel (Li et al., VLDB 2020).
BYTES_OVER_LATENCY = 8
LEAST_BUCKET_BYTES, MOST_BUCKET_BYTES = float(2**20), float(25 * 2**20)
# Which of a layer's gradients: of a user of tied parameters, those or the others alone.
_Part = Literal["all", "tied", "own"]


def reduce_buckets(
    problem: Problem, plan: Plan, shape: PlanShape | None = None
) -> tuple[ReduceBucket, ...]:
    """Layers grouped by the devices that hold their gradients, where there are several, back first.

    Where all-reduces overlap with passes, a group is split by layers, so that the gradients of its
    last layers leave while those of its first are still being computed.

    A tied layer stands for the parameters that it shares: its devices are those of the owner of
    the parameters and of all their users. Where fewer devices have the layer itself, these sum its
    own parameters, beside those of other layers. Of a tensor-parallel group the first device stands
    for all; layers whose optimizer state is sharded are kept apart from others.

    Args:
        problem: Whose layers and links they are.
        plan: What runs.
        shape: Its stages and devices, where they are known.
    """
    shape = shape or PlanShape.of(plan)
    lengths = shape.layers[:, 1] - shape.layers[:, 0] + 1
    if lengths.sum() == plan.num_layers and not problem.profile.tied_layers:
        return ()  # each layer is on one device
    index = problem.links.index
    heads = np.array([index[group[0]] for group in shape.groups])
    in_order, has = np.argsort(heads), _holders(problem.profile.num_layers, shape)
    unsplit: dict[ReduceBucket, dict[int, _Part]] = defaultdict(dict)
    sharded, members = plan.sharded_layers, _Members(plan, shape)
    names: dict[bytes, tuple[str, ...]] = {}
    for layer, holding, part in _sums(problem.profile, has[:, in_order]):
        own = holding.tobytes()
        if own not in names:
            names[own] = tuple([shape.groups[i][0] for i in in_order[holding].tolist()])
        unsplit[members.bucket(names[own], layer in sharded)][layer] = part
    buckets = [
        bucket._replace(
            layers=run, tied_only=_of("tied", run, parts), own_only=_of("own", run, parts)
        )
        for bucket, parts in unsplit.items()
        for run in (_split(problem, bucket, parts) if plan.sums_overlap else [tuple(sorted(parts))])
    ]
    return tuple(sorted(buckets, key=_from_the_back, reverse=True))


def _from_the_back(bucket: ReduceBucket) -> tuple[bool, tuple[int, ...]]:
    """What other devices share is waited for: it comes after what a device's replicas sum."""
    return not bucket.tied_only, bucket.layers


def _of(part: _Part, layers: Iterable[int], parts: Mapping[int, _Part]) -> tuple[int, ...]:
    return tuple(layer for layer in layers if parts[layer] == part)


def _holders(num_layers: int, shape: PlanShape) -> Flags:
    """(L, D) whether a device has a layer."""
    begun = np.zeros((num_layers + 1, len(shape.groups)), np.int64)
    np.add.at(begun, (shape.layers[:, 0], shape.stage_device), 1)
    np.add.at(begun, (shape.layers[:, 1] + 1, shape.stage_device), -1)
    return np.asarray(np.cumsum(begun[:-1], axis=0) > 0)


def _sums(profile: ModelProfile, has: Flags) -> Iterator[tuple[int, Flags, _Part]]:
    """Each layer with the (D,) devices that sum gradients of it, if several do, and which ones."""
    summing, apart = has.copy(), list[int]()
    for owner, users in profile.tied_layers.items():
        summing[list(users)] = has[[owner, *users]].any(axis=0)
        apart += [
            user
            for user in users
            if has_own(profile, user) and not np.array_equal(has[user], summing[user])
        ]
    for layer in np.flatnonzero(summing.sum(axis=1) > 1).tolist():
        yield layer, summing[layer], "tied" if layer in apart else "all"
        if layer in apart and has[layer].sum() > 1:
            yield layer, has[layer], "own"


class _Members:
    """The groups of devices of a plan, for buckets over some of them."""

    def __init__(self, plan: Plan, shape: PlanShape) -> None:
        self._plan = plan
        self._group_of = {group[0]: group for group in shape.groups}
        self._slice_of: dict[str, GroupSlice] = {}
        self._known: dict[tuple[tuple[str, ...], bool], ReduceBucket] = {}
        for stage in plan.stages:
            if stage.tensor_shares and stage.uneven_shares:
                name, own = stage.devices[0], largest_slice(stage.uneven_shares)
                known = self._slice_of.get(name, own)
                self._slice_of[name] = max(own, known, key=lambda each: max(each.shares))

    def bucket(self, devices: tuple[str, ...], is_sharded: bool) -> ReduceBucket:
        """A bucket without layers."""
        key = devices, is_sharded
        if key not in self._known:
            self._known[key] = self._made(devices, is_sharded)
        return self._known[key]

    def _made(self, devices: tuple[str, ...], is_sharded: bool) -> ReduceBucket:
        groups = tuple(self._group_of[name] for name in devices)
        slices = tuple(self._slice_of.get(name) for name in devices)
        if all(len(group) == 1 for group in groups):
            groups, slices = (), ()
        whole = tuple(self._plan.unsplit_layers_on(group) for group in groups)
        return ReduceBucket(devices, (), groups, slices, is_sharded, whole if any(whole) else ())


def _split(
    problem: Problem, bucket: ReduceBucket, parts: Mapping[int, _Part]
) -> list[tuple[int, ...]]:
    """Runs of layers from the back, each of at least `_least_bytes` but the one in front.

    Layers that share a tied parameter stay together, in the place of the one that is in front:
    its backward pass completes their gradients.
    """
    least = _least_bytes(problem, bucket.devices)
    key = _split, tuple(sorted(parts.items())), least, frozenset(ways_to_hold(bucket))
    known = problem.derived.get(key)
    if not isinstance(known, list):
        problem.derived[key] = known = _runs(problem, bucket, parts, least)
    return known


def _runs(
    problem: Problem, bucket: ReduceBucket, parts: Mapping[int, _Part], least: float
) -> list[tuple[int, ...]]:
    place = {layer: layer for layer in parts}
    for owner, users in problem.profile.tied_layers.items():
        together = [layer for layer in (owner, *users) if parts.get(layer, "own") != "own"]
        place.update(dict.fromkeys(together, min(together, default=0)))
    gradient = np.max(
        [each.tables.gradient_bytes for each in held_problems(problem, bucket)], axis=0
    )
    for layer in _of("own", parts, parts):
        gradient[layer] *= 1 - tied_share(problem.profile, layer)
    runs: list[tuple[int, ...]] = []
    run: list[int] = []
    for front in sorted(set(place.values()), reverse=True):
        run += [layer for layer in parts if place[layer] == front]
        if gradient[run].sum() >= least:
            runs.append(tuple(sorted(run)))
            run = []
    if run:
        runs.append(tuple(sorted(run)))
    return runs


def _least_bytes(problem: Problem, devices: tuple[str, ...]) -> float:
    """A bucket of this size is long enough on its way that its latency hardly counts."""
    ((bandwidth, latency_s),) = _rings(problem, devices, [devices], {})
    return least_bucket_bytes(len(devices), bandwidth, latency_s)


def least_bucket_bytes(num_devices: int, bandwidth: float, latency_s: float) -> float:
    """Bytes of a bucket that leaves early over a ring, with its slowest link and most latency."""
    pays = BYTES_OVER_LATENCY * num_devices * bandwidth * latency_s
    return min(max(pays, LEAST_BUCKET_BYTES), MOST_BUCKET_BYTES)


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
        known = max(gradient_bytes_in(each, bucket) for each in held_problems(problem, bucket))
        problem.derived[key] = known
    return known


def gradient_bytes_in(problem: Problem, bucket: ReduceBucket) -> float:
    """The same on devices that have layers as the problem has them."""
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


# Smallest bandwidth and largest latency of each ring, by their devices or groups of them.
Rings = dict[tuple[str, ...] | tuple[tuple[str, ...], ...], list[tuple[float, float]]]


def reduce_s(problem: Problem, bucket: ReduceBucket, known: Rings | None = None) -> float:
    """Seconds of one ring all-reduce over the bucket's devices, in their order.

    Its pieces (`REDUCE_COPY_BYTES`) overlap: the latency counts once.

    Between tensor-parallel groups of one degree there is a ring for each rank, all at a time: rank
    i of each replica with rank i of the others. Between unlike degrees what is split has as many
    parts as their least common multiple, and a ring for each part; a device of a smaller group has
    several parts, whose rings follow each other. The slowest ring decides.

    Args:
        problem: Its links.
        bucket: What is summed.
        known: Rings that were looked at before, and those of this one.
    """
    known = {} if known is None else known
    n = len(bucket.devices)
    if not bucket.groups:
        ((bandwidth, latency_s),) = _rings(problem, bucket.devices, [bucket.devices], known)
        return 2 * (n - 1) * (latency_s + reduce_bytes(problem, bucket) / n / bandwidth)
    degrees = [len(group) for group in bucket.groups]
    num_rings = math.lcm(*degrees)
    num_bytes, in_turn = reduce_bytes(problem, bucket), num_rings // min(degrees)
    rings = (
        tuple(group[ring * len(group) // num_rings] for group in bucket.groups)
        for ring in range(num_rings)
    )
    links = _rings(problem, bucket.groups, rings, known)
    return max(
        2 * (n - 1) * (in_turn * latency_s + num_bytes / n / bandwidth)
        for bandwidth, latency_s in links
    )


def _rings(
    problem: Problem,
    members: tuple[str, ...] | tuple[tuple[str, ...], ...],
    rings: Iterable[tuple[str, ...]],
    known: Rings,
) -> list[tuple[float, float]]:
    """The smallest bandwidth and the largest latency on the way around each ring of members."""
    if members not in known:
        index = problem.links.index
        own = np.array([[index[name] for name in ring] for ring in rings], np.int64)
        latency_s, bandwidth = problem.links.by_node.between(own, np.roll(own, -1, axis=1))
        both = bandwidth.min(axis=1).tolist(), latency_s.max(axis=1).tolist()
        known[members] = list(dict.fromkeys(zip(*both, strict=True)))
    return known[members]
