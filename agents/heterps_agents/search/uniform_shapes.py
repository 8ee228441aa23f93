"""Even ways to train: as many layers, devices and replicas everywhere, as a user sets by hand.

A shape says how many devices split a layer, how many stages a pipeline has and how many pipelines
there are. Its groups are devices of one class on one node, in the order of the cluster file; either
the replicas of a stage lie side by side (Megatron's usual order) or the stages of a pipeline do.
Layers of the most frequent kind are cut into equal counts; where these do not divide, the last
stages have one more. What lies in front of such layers or behind them goes with its neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.plan import LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Integers
from heterps_envs.layer_costs.tensor_parallel import split_at
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of

_Group = tuple[str, ...]


class Shape(NamedTuple):
    """How devices are arranged.

    Attributes:
        degree: Devices of a tensor-parallel group.
        num_stages: Of a pipeline.
        num_replicas: Pipelines.
        is_by_pipeline: The stages of a pipeline are neighbours, not the replicas of a stage.
    """

    degree: int
    num_stages: int
    num_replicas: int
    is_by_pipeline: bool = False

    @property
    def grid(self) -> Integers:
        """(stages, replicas) the index of each one's group."""
        size = self.num_stages * self.num_replicas
        if self.is_by_pipeline:
            return np.arange(size).reshape(self.num_replicas, self.num_stages).T
        return np.arange(size).reshape(self.num_stages, self.num_replicas)


class EvenStrategy(NamedTuple):
    """A shape, and what its devices hold.

    Attributes:
        recomputes: All layers drop their activations and compute them again.
        shards_state: Replicas divide the optimizer state among them (ZeRO-1).
    """

    shape: Shape
    recomputes: bool = False
    shards_state: bool = False


def groups_of(problem: Problem, degree: int) -> list[_Group]:
    """Groups of devices of one class on one node, in the order of the cluster file."""
    key = groups_of, degree
    known = problem.derived.get(key)
    if not isinstance(known, list):
        problem.derived[key] = known = [
            tuple(names[at : at + degree])
            for names in _neighbours(problem)
            for at in range(0, len(names) - len(names) % degree, degree)
        ]
    return known


def even_cuts(problem: Problem, num_stages: int) -> list[range]:
    """The layers of each stage."""
    key = even_cuts, num_stages
    known = problem.derived.get(key)
    if not isinstance(known, list):
        problem.derived[key] = known = _even_cuts(problem, num_stages)
    return known


def _even_cuts(problem: Problem, num_stages: int) -> list[range]:
    kinds = [layer.kind for layer in problem.profile.layers]
    counted = np.flatnonzero(_is_counted(kinds, num_stages))
    least, more = divmod(len(counted), num_stages)
    sizes = [least + (index >= num_stages - more) for index in range(num_stages)]
    starts = counted[np.cumsum([0, *sizes[:-1]])].tolist()
    stops = [*starts[1:], len(kinds)]
    return [range(start, stop) for start, stop in zip([0, *starts[1:]], stops, strict=True)]


def even_strategies(problem: Problem) -> Iterator[EvenStrategy]:
    """Those that the strategy of a problem allows, with its micro-batch size.

    Degrees, stages and replicas are powers of two and what divides: a node's devices, the groups or
    layers, the micro-batches. Replicas are besides as many as there are devices for.
    """
    num_layers, num_micro_batches = problem.profile.num_layers, problem.job.num_micro_batches
    kinds = Counter(layer.kind for layer in problem.profile.layers)
    asked = problem.strategy
    again = [False, True] if asked.recompute == "auto" else [asked.recompute == "full"]
    may_shard = asked.shard_state == "auto"
    for degree in _degrees(problem):
        num_groups = len(groups_of(problem, degree))
        depths = _usual(num_groups, min(num_groups, num_layers))
        depths |= _usual(max(kinds.values()), min(num_groups, num_layers))
        for num_stages in sorted(depths):
            most = min(num_groups // num_stages, num_micro_batches)
            for num_replicas in sorted({most} | _usual(num_micro_batches, most)):
                shape = Shape(degree, num_stages, num_replicas)
                is_same = 1 in (num_stages, num_replicas)
                for each in (shape,) if is_same else (shape, shape._replace(is_by_pipeline=True)):
                    for recomputes in again:
                        yield EvenStrategy(each, recomputes)
                        if num_replicas > 1 and may_shard:
                            yield EvenStrategy(each, recomputes, shards_state=True)


def plan_of_strategy(problem: Problem, strategy: EvenStrategy, planner: str, seed: int) -> Plan:
    """Its plan; replica j of k takes the micro-batches m with m mod k = j."""
    shape, last = strategy.shape, problem.profile.num_layers - 1
    groups = groups_of(problem, shape.degree)
    cuts, grid = even_cuts(problem, shape.num_stages), shape.grid.tolist()
    columns = [
        [
            Stage(
                name=f"s{index}" if len(row) == 1 else f"s{index}r{replica}",
                first_layer=layers[0],
                last_layer=layers[-1],
                devices=groups[group],
                recompute_layers=tuple(layers) if strategy.recomputes else (),
            )
            for replica, group in enumerate(row)
        ]
        for index, (layers, row) in enumerate(zip(cuts, grid, strict=True))
    ]
    number, step = problem.job.num_micro_batches, shape.num_replicas
    pipelines = tuple(
        Pipeline(
            stages=tuple(column[replica].name for column in columns),
            micro_batches=tuple(range(replica, number, step)),
        )
        for replica in range(step)
    )
    stages = tuple(stage for column in columns for stage in column)
    plan = plan_of(problem, stages, pipelines, planner=planner, seed=seed)
    if not strategy.shards_state:
        return plan
    return plan.changed(sharded_state=(LayerRange(first_layer=0, last_layer=last),))


def _is_counted(kinds: list[str], num_stages: int) -> list[bool]:
    """The layers that are cut into equal counts: the most frequent kind where it suffices."""
    kind, count = Counter(kinds).most_common(1)[0]
    if count < num_stages or 2 * count < len(kinds):
        return [True] * len(kinds)
    return [each == kind for each in kinds]


def _neighbours(problem: Problem) -> list[list[str]]:
    """Devices of one class on one node; those of a cluster file are mostly asked for many sizes."""
    key = _neighbours, problem.nodes_apart
    known = problem.links.derived.get(key)
    if not isinstance(known, list):
        problem.links.derived[key] = known = _runs(problem)
    return known


def _runs(problem: Problem) -> list[list[str]]:
    def place(name: str) -> tuple[str, int]:
        return problem.device_named[name].node, problem.class_of[name]

    names = [device.name for device in problem.cluster.devices]
    return [list(found) for _, found in groupby(names, place)]


def _degrees(problem: Problem) -> list[int]:
    """Of groups that a node has room for, and that some layer can be split for."""
    sizes = {len(names) for names in _neighbours(problem)}
    found = set().union(*(_usual(size, size) for size in sizes))
    layers, asked = problem.profile.layers, problem.strategy
    if asked.tensor_parallel:
        found &= set(asked.tensor_parallel)
    return [d for d in sorted(found) if d == 1 or any(split_at(layer, d) for layer in layers)]


def _usual(whole: int, most: int) -> set[int]:
    """Up to `most`, what divides a number, and powers of two."""
    divisors = {number for number in range(1, most + 1) if whole % number == 0}
    return divisors | {2**power for power in range(most.bit_length())}
