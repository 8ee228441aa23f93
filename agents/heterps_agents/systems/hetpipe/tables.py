"""What the partition of a virtual worker reads: seconds, bytes and links of its devices."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.problem import Problem


class WorkerTables(NamedTuple):
    """Of L layers and T kinds of devices: those of a kind are alike, and so are their links.

    Attributes:
        compute_s: (T, L) of both passes.
        state_bytes: (L,) of weights, gradients and optimizer state.
        kept_bytes: (L,) of one mini-batch.
        cut_bytes: (L + 1,) in front of each layer, and behind the last one; 0 at both ends.
        counts: (T,) devices.
        memory_bytes: (T,) of each device.
        links: (2, T, T) latency, and seconds for each byte, from one kind to another.
        all_at_once: Stages hold all mini-batches, as under GPipe.
    """

    compute_s: Floats
    state_bytes: Floats
    kept_bytes: Floats
    cut_bytes: Floats
    counts: Integers
    memory_bytes: Floats
    links: Floats
    all_at_once: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for workers that have the same partitions."""
        return tuple(np.asarray(each).tobytes() for each in self)

    @property
    def num_layers(self) -> int:
        """Number of layers, L."""
        return len(self.state_bytes)

    @property
    def num_stages(self) -> int:
        """One for each device."""
        return int(self.counts.sum())

    @property
    def summed(self) -> tuple[Floats, Floats, Floats]:
        """(T, L + 1), (L + 1,), (L + 1,) seconds, state and kept bytes in front of each border."""
        first = np.zeros((len(self.counts), 1))
        compute_s = np.hstack([first, np.cumsum(self.compute_s, axis=1)])
        state, kept = (
            np.concatenate([[0.0], np.cumsum(each)]) for each in (self.state_bytes, self.kept_bytes)
        )
        return compute_s, state, kept


def worker_tables(
    problem: Problem, names: Sequence[str]
) -> tuple[WorkerTables, tuple[tuple[str, ...], ...]]:
    """The tables of some devices, and those of each kind: of a class, and on a node."""
    kinds: dict[tuple[int, str], list[str]] = {}
    for name in names:
        key = problem.class_of[name], problem.device_named[name].node
        kinds.setdefault(key, []).append(name)
    tables, classes = problem.tables, [kind for kind, _ in kinds]
    members = tuple(tuple(each) for each in kinds.values())
    links = np.zeros((2, len(kinds), len(kinds)))
    for a, front in enumerate(members):
        for b, behind in enumerate(members):
            pair = front[0], behind[-1]
            links[:, a, b] = problem.slowest_link([pair]) if pair[0] != pair[1] else 0.0
    found = WorkerTables(
        compute_s=np.ascontiguousarray(tables.compute_s[:, classes].T),
        state_bytes=tables.state_bytes,
        kept_bytes=tables.activation_bytes,
        cut_bytes=np.concatenate([[0.0], tables.output_bytes]),
        counts=np.array([len(each) for each in members], np.int64),
        memory_bytes=tables.memory_bytes[classes],
        links=links,
        all_at_once=tables.is_gpipe,
    )
    return found, members
