"""What a step of several pipelines takes by HexiScale's own cost, and their micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.degrees import at_degree
from heterps_agents.systems.hexiscale.graph import DeviceGraph
from heterps_agents.systems.hexiscale.pipeline import Pipe, before_cuts
from heterps_envs.arrays import Floats, Integers
from heterps_envs.problem import Problem

# Of a bisection for a time.
_HALVINGS = 60
_ROUNDED = 1e-9


class Shared(NamedTuple):
    """Pipelines that have micro-batches, and how many each."""

    pipes: tuple[Pipe, ...]
    micro_batches: tuple[int, ...]

    @property
    def seconds(self) -> float:
        """Of the pipeline that takes longest."""
        pairs = zip(self.pipes, self.micro_batches, strict=True)
        return max(pipe.seconds(count) for pipe, count in pairs)


def shared(pipes: Sequence[Pipe], total: int) -> Shared | None:
    """All micro-batches over the pipelines, so that the last one ends as early as can be.

    Pipelines that would be late with a single one have none. None where they have no room for all.
    """
    if sum(pipe.most for pipe in pipes) < total:
        return None
    low_s, high_s = 0.0, max(pipe.seconds(max(pipe.most, 1)) for pipe in pipes)
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        enough = sum(_within(pipe, middle_s) for pipe in pipes) >= total
        low_s, high_s = (low_s, middle_s) if enough else (middle_s, high_s)
    counts = [_within(pipe, high_s) for pipe in pipes]
    for _ in range(sum(counts) - total):
        late = max(
            (index for index, count in enumerate(counts) if count),
            key=lambda index: pipes[index].seconds(counts[index]),
        )
        counts[late] -= 1
    used = [(pipe, count) for pipe, count in zip(pipes, counts, strict=True) if count]
    return Shared(tuple(pipe for pipe, _ in used), tuple(count for _, count in used))


def _within(pipe: Pipe, seconds: float) -> int:
    """Micro-batches that a pipeline is done with in time."""
    if seconds < pipe.fill_s * (1 - _ROUNDED) or pipe.most == 0:
        return 0
    if pipe.period_s <= _ROUNDED * pipe.fill_s:
        return pipe.most
    more = max(seconds - pipe.fill_s, 0.0) / pipe.period_s
    return int(min(pipe.most, more + 1 + _ROUNDED))


class GradientSums:
    """Seconds of the sums of gradients, and of the optimizer, behind the passes.

    A layer's gradients are summed over all stages that hold it, in a ring over the pipelines in
    their order; a device sums those of its layers one after the other. Links are not shared.

    Args:
        problem: The problem.
        graph: Its devices.
        degrees: Devices that a group may have.
    """

    def __init__(self, problem: Problem, graph: DeviceGraph, degrees: Sequence[int]) -> None:
        self._graph = graph
        own = {degree: at_degree(problem, degree) for degree in degrees}
        self._bytes = {degree: before_cuts(each.gradient_bytes) for degree, each in own.items()}
        self._step_s = {degree: before_cuts(each.optimizer_s) for degree, each in own.items()}

    def seconds(self, pipes: Sequence[Pipe]) -> float:
        """Of the stage that takes longest."""
        borders = np.array(sorted({0, *(end for pipe in pipes for end in pipe.ends)}))
        holders = [np.searchsorted(pipe.ends, borders[:-1], side="right") for pipe in pipes]
        nodes = np.stack([self._nodes(*each) for each in zip(pipes, holders, strict=True)])
        following = np.roll(nodes, -1, axis=0)
        # Of the slowest link in the ring of each range of layers.
        latency_s = self._graph.latency_s[nodes, following].max(axis=0)
        s_per_byte = self._graph.s_per_byte[nodes, following].max(axis=0)
        # Without a link the latency is inf; alone, a pipeline sums nothing.
        longest_s, count = 0.0, len(pipes)
        latency_s = latency_s if count > 1 else np.zeros_like(latency_s)
        for pipe, own in zip(pipes, holders, strict=True):
            sizes = self._sizes(pipe, own, borders)
            sums_s = 2 * (count - 1) * (latency_s + sizes / count * s_per_byte)
            sums_s = np.where(sizes > 0, sums_s, 0.0)
            stages_s = np.bincount(own, sums_s, len(pipe.groups)) + self._optimizer_s(pipe)
            longest_s = max(longest_s, float(stages_s.max()))
        return longest_s

    def _nodes(self, pipe: Pipe, holders: Integers) -> Integers:
        kinds = np.array([group.kind for group in pipe.groups])
        return np.asarray(self._graph.node_of[kinds[holders]], np.int64)

    def _sizes(self, pipe: Pipe, holders: Integers, borders: Integers) -> Floats:
        """Bytes of the gradients of each range of layers, on a device that holds it."""
        found = np.empty(len(holders))
        for index, group in enumerate(pipe.groups):
            own = np.flatnonzero(holders == index)
            before = self._bytes[group.degree][:, self._graph.class_of[group.kind]]
            found[own] = before[borders[own + 1]] - before[borders[own]]
        return found

    def _optimizer_s(self, pipe: Pipe) -> Floats:
        """(S,) seconds of the optimizer step of each stage."""
        firsts = (0, *pipe.ends[:-1])
        columns = [
            self._step_s[group.degree][:, self._graph.class_of[group.kind]] for group in pipe.groups
        ]
        parts = zip(columns, firsts, pipe.ends, strict=True)
        return np.array([float(own[end] - own[first]) for own, first, end in parts])
