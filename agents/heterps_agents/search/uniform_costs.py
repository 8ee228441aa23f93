"""Quick costs of even strategies: seconds by a closed form, lower bounds of seconds and memory.

Memory is counted from below, since what is ruled out here is never simulated.
`heterps_envs.held_bytes` counts from above: of 1033 even plans of shipped models that fit it would
refuse ten, the best one of a problem among them, where these bounds refuse none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from heterps_agents.search.uniform_kernels import Groups, Nets, Stages, Work, even_costs
from heterps_agents.search.uniform_shapes import EvenStrategy, even_cuts, groups_of
from heterps_envs.arrays import Floats, Integers, Record
from heterps_envs.links import devices_by_node
from heterps_envs.problem import Problem
from heterps_envs.schedule.reduce_buckets import (
    BYTES_OVER_LATENCY,
    LEAST_BUCKET_BYTES,
    MOST_BUCKET_BYTES,
)

Key = TypeVar("Key")


class Quick(NamedTuple):
    """What can be said of a strategy without simulating it.

    Attributes:
        early_s: A step by a closed form, to order strategies, with sums beside backward passes.
        late_s: The same with sums after them.
        least_s: The simulator says no less.
        lacks_bytes: What is missing on some device at least; 0 or less: it may fit.
        price_usd_per_hour: Of its devices.
    """

    early_s: float
    late_s: float
    least_s: float
    lacks_bytes: float
    price_usd_per_hour: float

    @property
    def step_time_s(self) -> float:
        """The less of both."""
        return min(self.early_s, self.late_s)


class UniformCosts:
    """Quick costs of one problem's even strategies."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def quick(self, strategies: Sequence[EvenStrategy]) -> list[Quick]:
        """Of some strategies, in their order."""
        if not strategies:
            return []
        degrees = sorted({strategy.shape.degree for strategy in strategies})
        shapes = sorted({strategy.shape[:2] for strategy in strategies})
        groups, prices = zip(*map(self._groups, degrees), strict=True)
        first_group = _starts(degrees, [len(each.kind) for each in groups])
        first_stage = _starts(shapes, [num_stages for _, num_stages in shapes])
        stages = [self._stages(*shape, first_stage[shape]) for shape in shapes]
        price_of = dict(zip(degrees, prices, strict=True))
        ways = [
            (first_group[shape.degree], first_stage[shape[:2]], *shape[1:], again, shards)
            for shape, again, shards in strategies
        ]
        numbers = np.array(ways, dtype=np.int64)
        costs = even_costs(numbers, _joined(groups), _joined(stages), self._nets, self._work)
        return [
            Quick._make([*row, price_of[shape.degree][shape.num_stages * shape.num_replicas]])
            for row, (shape, *_) in zip(costs.tolist(), strategies, strict=True)
        ]

    def _groups(self, degree: int) -> tuple[Groups, list[float]]:
        """Groups of a degree, and what the first 0, 1, .. of them cost an hour."""
        problem, key = self.problem, (Groups, degree, self.problem.nodes_apart)
        known = problem.links.derived.get(key)
        if not isinstance(known, tuple):
            problem.links.derived[key] = known = _groups_of(problem, degree)
        return known

    def _stages(self, degree: int, num_stages: int, place: int) -> Stages:
        own = self.problem.at_degree(degree)
        times, memory = own.layer_times, own.layer_memory
        starts = np.array([layers.start for layers in even_cuts(self.problem, num_stages)])
        ends = np.append(starts[1:], own.profile.num_layers) - 1
        # A parameter that layers share is there once, at least.
        parameters = np.array([e.num_parameters - e.tied_parameters for e in own.profile.layers])
        weights = np.add.reduceat(parameters, starts) * own.job.weight_bytes_per_parameter
        shared_bytes, shared_with = _shared(own, starts)
        kept = [each.kept_bytes_of(starts) for each in (memory, memory.computed_again())]
        return Stages(
            np.add.reduceat(times.forward_s, starts),
            np.add.reduceat(times.backward_s, starts),
            np.add.reduceat(times.optimizer_s, starts),
            weights.astype(float),
            np.maximum(np.add.reduceat(own.tables.gradient_bytes, starts) - shared_bytes, 0.0),
            shared_bytes,
            shared_with + place,
            np.stack(kept),
            np.append(self.problem.tables.output_bytes[ends[:-1]], 0.0),
            ends - starts + 1,
        )

    @cached_property
    def _work(self) -> Work:
        job = self.problem.job
        return Work(
            num_micro_batches=job.num_micro_batches,
            moments_per_weight=job.optimizer_bytes_per_parameter / job.weight_bytes_per_parameter,
            holds_all=job.schedule == "gpipe",
            is_equal=len(set(job.micro_batch_sizes)) == 1,
            counts_way=job.schedule != "zero-bubble",
            bucket_latencies=float(BYTES_OVER_LATENCY),
            least_bucket_bytes=LEAST_BUCKET_BYTES,
            most_bucket_bytes=MOST_BUCKET_BYTES,
        )

    @cached_property
    def _nets(self) -> Nets:
        known = self.problem.links.derived.get(Nets)
        if not isinstance(known, Nets):
            self.problem.links.derived[Nets] = known = Nets(*_links(self.problem))
        return known


def _starts(keys: Sequence[Key], counts: Sequence[int]) -> dict[Key, int]:
    """Where the parts of each key begin, one after another."""
    return dict(zip(keys, np.cumsum([0, *counts[:-1]]).tolist(), strict=True))


def _joined(parts: Sequence[Record]) -> Record:
    """Records one after another; of an array with three axes along the second one."""
    columns = zip(*parts, strict=True)
    arrays = [np.concatenate(each, axis=1 if each[0].ndim == 3 else 0) for each in columns]
    return type(parts[0])(*arrays)


def _groups_of(problem: Problem, degree: int) -> tuple[Groups, list[float]]:
    groups = groups_of(problem, degree)
    nodes = list(devices_by_node(problem.cluster.devices))
    firsts = [problem.device_named[group[0]] for group in groups]
    prices = [
        sum(problem.device_named[name].price_usd_per_hour for name in group) for group in groups
    ]
    found = Groups(
        np.array([problem.class_of[each.name] for each in firsts]),
        np.array([nodes.index(each.node) for each in firsts]),
        np.array([min(map(problem.usable_bytes, group)) for group in groups], float),
    )
    return found, np.cumsum([0.0, *prices]).tolist()


def _shared(problem: Problem, starts: Integers) -> tuple[Floats, Integers]:
    """(S,) gradient bytes that a stage and a later one sum, and the last one of those."""
    num_bytes, last = np.zeros(len(starts)), np.arange(len(starts))
    for owner, users in problem.profile.tied_layers.items():
        stages = np.searchsorted(starts, [owner, *users], side="right") - 1
        first, until = stages.min(), stages.max()
        if first != until:
            # In the simulator the stage in front completes it; it is the owner's, mostly.
            num_bytes[first] += problem.tables.gradient_bytes[owner]
            last[first] = max(last[first], until)
    return num_bytes, last


def _links(problem: Problem) -> tuple[Floats, Floats]:
    """(N, N) latency and seconds per byte from node to node; inside them on the diagonal."""
    ends = devices_by_node(problem.cluster.devices)
    latency_s, s_per_byte = np.zeros((2, len(ends), len(ends)))
    for i, first in enumerate(ends.values()):
        for j, second in enumerate(ends.values()):
            if first[0].name != second[-1].name:
                link = problem.links.between(first[0], second[-1])
                latency_s[i, j] = link.latency_s
                s_per_byte[i, j] = 1 / link.bandwidth_bytes_per_s
    return latency_s, s_per_byte
