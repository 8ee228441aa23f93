"""The pipelines that plans are made of: for each multiset of devices the best for some shares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from heterps_agents.asymmetric.counts import Counts, counts_up_to, num_counts
from heterps_agents.asymmetric.kernels import Sweep, sweep
from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.lanes.beside import Beside, pipeline_steps_s
from heterps_envs.options import StageOption
from heterps_envs.problem import Problem
from heterps_envs.useful_options import useful_options, with_columns

# Shares of the micro-batches that pipelines are made for.
SHARES = (0.8, 0.65, 0.5, 0.4, 0.33, 0.25, 0.18, 0.125, 0.09, 0.0625, 0.045, 0.03, 0.02)
# Of its fair share by number of devices, a pipeline's share is at least so much.
LEAST_SHARE = 0.6

Stages = tuple[tuple[int, int, int], ...]


class View(NamedTuple):
    """A problem as pipelines are sought in it.

    Attributes:
        problem: With its classes.
        kernel: Its tables; no option divides optimizer state.
        options: Of the kernel.
        latency_s: Of the slowest link between devices.
        s_per_byte: Of the same.
    """

    problem: Problem
    kernel: KernelTables
    options: tuple[StageOption, ...]
    latency_s: float
    s_per_byte: float

    @classmethod
    def of(cls, problem: Problem, room: float = 1.0) -> View:
        """Of a view of a problem, with the options that its strategy allows.

        Args:
            problem: The view.
            room: Memory is so many times what the rule of planners leaves.
        """
        if problem.strategy.is_plain:
            tables = problem.tables
            options = tuple(StageOption(kind) for kind in range(len(problem.classes)))
        else:
            found = useful_options(problem)
            kept = [i for i, each in enumerate(found.options) if not each.shards_state]
            tables = with_columns(found.tables, kept)
            options = tuple(found.options[index] for index in kept)
        links, kernel = problem.tables, kernel_tables(tables)
        kernel = kernel._replace(memory_bytes=room * kernel.memory_bytes)
        return cls(
            problem, kernel, options, float(links.latency_s.max()),
            float(links.inverse_bandwidth_s_per_byte.max()),
        )  # fmt: skip

    def beside(self, share: int, others: float, counted: float) -> Beside:
        """A pipeline's share, beside so many others."""
        is_open = not self.problem.tables.holds_by_rule
        return Beside(share, others, self.latency_s, self.s_per_byte, counted, is_open)

    def steps_s(self, stages: Stages, others: int, counted: float, most: int) -> Floats:
        """(most + 1,) closed form of a pipeline with 0, 1, .. micro-batches."""
        step_s, rows = np.zeros(most + 1), np.array(stages, np.int64)
        beside = self.beside(1, float(others), counted)
        pipeline_steps_s(self.kernel, beside, rows, np.arange(1, most + 1), step_s[1:])
        return step_s

    def counts(self, stages: Stages) -> tuple[int, ...]:
        """Devices of each class that a pipeline takes."""
        found = [0] * self.kernel.num_classes
        for _, kind, replicas in stages:
            degree = int(self.kernel.devices_of_option[kind])
            found[int(self.kernel.class_of_option[kind])] += replicas * degree
        return tuple(found)


class Pipes(NamedTuple):
    """P pipelines, each beside others; with m micro-batches one takes about `first_s + m each_s`.

    Attributes:
        counts: The multisets of devices.
        stages: Of each pipeline.
        vector: (P,) its multiset.
        first_s, each_s: (P,)
        most: (P,) micro-batches that it has room for.
    """

    counts: Counts
    stages: tuple[Stages, ...]
    vector: Integers
    first_s: Floats
    each_s: Floats
    most: Integers

    def within(self, seconds: float) -> Integers:
        """(P,) micro-batches that each is done with in time."""
        done = np.floor((seconds - self.first_s) / self.each_s + 1e-9)
        return np.clip(done, 0, self.most).astype(np.int64)


class Effort(NamedTuple):
    """How many pipelines are looked at.

    Attributes:
        work: Stages that are put in front of others in one sweep, about.
        most_parts: Layers are joined where there are more, for the sweep.
        replicas: Of a stage at most; pipelines are sought with each of these limits.
    """

    work: float = 2e6
    most_parts: int = 48
    replicas: tuple[int, ...] = (4,)


def pipes_of(view: View, limit_s: float, counted: float, effort: Effort) -> Pipes | None:
    """Pipelines that may be part of a plan whose step takes no longer than a limit.

    Args:
        view: The problem.
        limit_s: The limit.
        counted: Share of the seconds of sums that no pass hides.
        effort: How many are looked at.

    Returns:
        None where there are none.
    """
    kernel = view.kernel
    if kernel.num_options == 0:  # all that have room divide state, and lanes do not
        return None
    edges = parts_of(kernel, effort.most_parts)
    counts = _counts_for(kernel, len(edges) - 1, effort)
    found: dict[tuple[int, Stages], tuple[int, float]] = {}
    for share in _shares(kernel):
        others = kernel.num_micro_batches / share - 1
        beside = view.beside(share, others, counted)
        for most_replicas in effort.replicas:
            room = _room_for(kernel, edges, counts, most_replicas, limit_s)
            sweep(kernel, beside, room)
            for vector, stages in _best(room):
                found.setdefault((vector, stages), (share, others))
    if not found:
        return None
    lines = [
        _line(view, stages, share, others, counted)
        for (_, stages), (share, others) in found.items()
    ]
    first_s, each_s, most = map(np.array, zip(*lines, strict=True))
    return Pipes(
        counts, tuple(stages for _, stages in found), np.array([v for v, _ in found]), first_s,
        each_s, most,
    )  # fmt: skip


def parts_of(kernel: KernelTables, most: int) -> Integers:
    """(U + 1,) first layers of parts of about equal work, and the number of layers."""
    num_layers = kernel.num_layers
    if num_layers <= most:
        return np.arange(num_layers + 1)
    work = kernel.compute_prefix_s.mean(axis=1)
    cuts = np.searchsorted(work, np.linspace(0, work[-1], most + 1)[1:-1])
    return np.unique(np.concatenate([[0], cuts, [num_layers]])).astype(np.int64)


def _counts_for(kernel: KernelTables, num_parts: int, effort: Effort) -> Counts:
    """Multisets of as many devices as a sweep has time for."""
    device_count = [int(count) for count in kernel.device_count]
    each = num_parts**2 / 2 * kernel.num_options * sum(effort.replicas)
    degree = int(kernel.devices_of_option.max())
    most = min(sum(device_count), num_parts * degree)
    while most > 2 and each * num_counts(device_count, most) > effort.work:
        most -= 1
    return counts_up_to(device_count, most)


def _shares(kernel: KernelTables) -> list[int]:
    """Micro-batches that pipelines are made for, most first."""
    total, num_devices = kernel.num_micro_batches, int(kernel.device_count.sum())
    found = {max(1, round(total * share)) for share in SHARES}
    return sorted(
        (share for share in found if share < total and share * num_devices >= LEAST_SHARE * total),
        reverse=True,
    )


def _room_for(
    kernel: KernelTables, edges: Integers, counts: Counts, most_replicas: int, limit_s: float
) -> Sweep:
    """A sweep that has not begun."""
    shape = len(edges) - 1, kernel.num_options, len(counts.vectors)
    step_s, fill_s = np.full((2, *shape), np.inf)
    written, left = np.full((5, *shape), -1, np.int64), np.empty((2, shape[-1]), np.int64)
    return Sweep(edges, *counts, most_replicas, limit_s, step_s, fill_s, *written, *left)


def _best(room: Sweep) -> Iterator[tuple[int, Stages]]:
    """Multisets and their best pipelines."""
    best = room.step_s[0].min(axis=0)
    for vector in np.flatnonzero(np.isfinite(best)).tolist():
        yield vector, tuple(_traced(room, int(room.step_s[0, :, vector].argmin()), vector))


def _traced(room: Sweep, kind: int, vector: int) -> Iterator[tuple[int, int, int]]:
    first, num_cuts = 0, len(room.edges) - 1
    while first < num_cuts:
        at = first, kind, vector
        last, replicas = int(room.stop[at]), int(room.replicas[at])
        yield int(room.edges[last]), kind, replicas
        vector = int(room.rest[at])
        first, kind = last, int(room.behind[last, kind, vector]) if last < num_cuts else -1


def _line(
    view: View, stages: Stages, share: int, others: float, counted: float
) -> tuple[float, float, int]:
    """Seconds before, and for each micro-batch; and how many there is room for."""
    total = view.kernel.num_micro_batches
    step_s, rows = np.zeros(2), np.array(stages, np.int64)
    shares = np.array([share, min(2 * share, total)])
    beside = view.beside(1, others, counted)
    pipeline_steps_s(view.kernel, beside, rows, shares, step_s)
    few, many = step_s.tolist()
    if share == total or math.isinf(many):
        return 0.0, max(few / share, 1e-30), share
    each_s = max((many - few) / float(shares[1] - share), 1e-30)
    return few - share * each_s, each_s, total
