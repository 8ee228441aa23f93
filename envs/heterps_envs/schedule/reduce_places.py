"""Where the gradient all-reduces and the optimizer step stand in the action lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.plan import Plan, Stage
from heterps_envs.arrays import Integers
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import (
    BACKWARD,
    BACKWARD_WEIGHT,
    GATHER,
    REDUCE,
    STEP,
    Schedule,
)
from heterps_envs.schedule.tied import adding_layers


class _Place(NamedTuple):
    """Where one device has the gradients of one bucket.

    Attributes:
        at: Index after the last pass that adds to them.
        ready_share: Share of that pass after which they are complete.
    """

    at: int
    ready_share: float


def with_reduces(problem: Problem, plan: Plan, schedule: Schedule) -> Schedule:
    """Adds the all-reduces of `Schedule.buckets`, and at the end of each list the optimizer step.

    After it each device gathers what others have stepped of buckets whose state is sharded, in the
    global order of the all-reduces.

    Where they overlap, each all-reduce stands after the last pass that adds to its gradients
    instead of after all passes. On every device they keep one global order: that in which their
    gradients are complete, by the length of the list before that. So no two devices wait for one
    another: of all buckets that are under way, the first one is the next of all its devices.

    Args:
        problem: Says how long the layers of the last pass take.
        plan: What runs; `sums_overlap` says whether all-reduces overlap.
        schedule: Lists without them.
    """
    overlaps = plan.sums_overlap
    devices = {name: index for index, name in enumerate(schedule.devices)}
    first, stop = schedule.offsets[:-1], schedule.offsets[1:]
    passes = _backward_passes(plan, schedule) if overlaps else []
    ready = _Shares(problem, plan)
    places = [
        {
            devices[name]: _complete_at(ready, passes[devices[name]], adding)
            if overlaps
            else _Place(int(stop[devices[name]]), 1.0)
            for name in bucket.devices
        }
        for bucket in schedule.buckets
        for adding in [adding_layers(problem.profile, bucket.layers)]
    ]
    order = list(range(len(places)))
    if overlaps:
        order_of = [max(p.at - first[d] for d, p in own.items()) for own in places]
        order.sort(key=order_of.__getitem__)
    at: list[int] = []
    bucket_at: list[int] = []
    shares: list[float] = []
    earliest = first.tolist()
    for number in order:
        for device, place in places[number].items():
            # One that is moved after others is complete when they are: they decide.
            shares.append(place.ready_share if place.at >= earliest[device] else 0.0)
            earliest[device] = max(earliest[device], place.at)
            at.append(earliest[device])
            bucket_at.append(number)
    kinds = [REDUCE] * len(at) + [STEP] * len(devices)
    at, bucket_at = at + stop.tolist(), bucket_at + [-1] * len(devices)
    for number in order:
        if schedule.buckets[number].is_sharded:
            for device in places[number]:
                at.append(int(stop[device]))
                bucket_at.append(number)
                kinds.append(GATHER)
    shares += [1.0] * (len(at) - len(shares))
    added = np.bincount(np.searchsorted(stop, at), minlength=len(devices))
    new = _Inserted(np.array(at), len(schedule.kind))
    return replace(
        schedule,
        offsets=schedule.offsets + np.concatenate([[0], np.cumsum(added)]),
        kind=new.into(schedule.kind, kinds),
        stage=new.into(schedule.stage, -1),
        micro_batch=new.into(schedule.micro_batch, bucket_at),
        peer=new.into(schedule.peer, -1),
        overlaps_reduce=overlaps,
        ready_share=new.into(np.ones(len(schedule.kind)), shares),
    )


class _Inserted:
    """What `np.insert` does, for several arrays of one length."""

    def __init__(self, at: Integers, length: int) -> None:
        order = np.argsort(at, kind="stable")
        self._at = np.empty_like(at)
        self._at[order] = at[order] + np.arange(len(at))
        self._is_old = np.ones(length + len(at), bool)
        self._is_old[self._at] = False

    def into(self, old: NDArray[Any], new: Sequence[float] | int) -> NDArray[Any]:
        """Puts values before the places that were given, in their order."""
        found = np.empty(len(self._is_old), old.dtype)
        found[self._is_old], found[self._at] = old, new
        return found


class _Passes(NamedTuple):
    """The backward passes of one device.

    Attributes:
        at: (P,) their indices among all actions.
        last_of: For each of their stages, the last of its passes.
        end: Index after the device's last action.
        is_whole: (P,) whether gradients of inputs and of weights are one pass.
    """

    at: Integers
    last_of: dict[int, int]
    end: int
    is_whole: NDArray[np.bool_]


def _backward_passes(plan: Plan, schedule: Schedule) -> list[_Passes]:
    found = []
    for first, stop in pairwise(schedule.offsets.tolist()):
        kind = schedule.kind[first:stop]
        own = np.flatnonzero((kind == BACKWARD) | (kind == BACKWARD_WEIGHT))
        last_of = {stage: row for row, stage in enumerate(schedule.stage[first + own].tolist())}
        found.append(_Passes(first + own, last_of, stop, kind[own] == BACKWARD))
    return found


class _Shares:
    """Of each stage, after which share of a backward pass gradients of some layers are there.

    Stages of equal layers that are carried out in one way are looked at once.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self._problem, self._stages = problem, plan.stages
        ways: dict[tuple[object, ...], int] = {}
        self._way = [ways.setdefault(self._what_counts(s), len(ways)) for s in plan.stages]
        self._found: dict[tuple[int, frozenset[int]], float | None] = {}

    def of(self, stage: int, adding: frozenset[int]) -> float | None:
        """The share; None where the stage has none of the layers."""
        key = self._way[stage], adding
        if key not in self._found:
            has_any = not adding.isdisjoint(self._stages[stage].layers)
            share = _ready_share(self._problem, self._stages[stage], adding) if has_any else None
            self._found[key] = share
        return self._found[key]

    def _what_counts(self, stage: Stage) -> tuple[object, ...]:
        return (
            stage.first_layer,
            stage.last_layer,
            tuple(self._problem.class_of[name] for name in stage.devices),
            stage.split,
            stage.recompute_layers,
            stage.offloaded_layers,
        )


def _complete_at(shares: _Shares, passes: _Passes, adding: frozenset[int]) -> _Place:
    """Where the gradients of some layers are complete on a device."""
    rows = [
        (row, share)
        for stage, row in passes.last_of.items()
        if (share := shares.of(stage, adding)) is not None
    ]
    if not rows:
        return _Place(passes.end, 1.0)
    last, share = max(rows)
    # What was put off comes in no order that is known.
    return _Place(int(passes.at[last]) + 1, share if passes.is_whole[last] else 1.0)


def _ready_share(problem: Problem, stage: Stage, adding: frozenset[int]) -> float:
    """Share of a backward pass of a stage after which the gradients of its layers are there.

    A backward pass goes through the layers from the back; layers that are computed again take
    their forward seconds, too.
    """
    kind, own = problem.class_of[stage.devices[0]], problem.for_stage(stage)
    seconds = own.tables.backward_s[:, kind].copy()
    again, away = list(stage.recompute_layers), list(stage.offloaded_layers)
    seconds[again] += own.tables.forward_s[again, kind]
    if away:
        seconds[away] += own.offload.backward_s[away, kind]
    front = min(adding.intersection(stage.layers))
    total = seconds[stage.first_layer : stage.last_layer + 1].sum()
    if front == stage.first_layer or total <= 0:
        return 1.0
    return float(seconds[front : stage.last_layer + 1].sum() / total)
