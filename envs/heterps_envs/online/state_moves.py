"""Moves: which layer states travel between devices when one plan follows another, and how long.

What a state is, and who holds it: `heterps_envs.online.held_state`. A device that holds a layer
under both plans receives nothing for it. Of a tensor-parallel group each device holds its share,
and needs what of its share under the new plan it has not.

Seconds follow the simulator's rules: the link between two devices carries one message at a time in
each direction. Between two nodes, all devices share one link, because states are large enough to
fill it. Which devices of equal kind a new plan uses: `heterps_envs.online.equal_devices`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from heterps_configs.documents.plan import Plan
from heterps_envs.online.held_state import (
    WHOLE,
    Span,
    StatePart,
    contains,
    cut,
    span_of,
    spans_by_device,
    state_parts,
)
from heterps_envs.problem import Problem

# Seconds of a move beside its bytes: new stages, process groups and buffers on every rank. Of small
# models between four processes on two cores (`python benchmarks/online/online.py --only moves`);
# who knows better says so.
MOVE_OVERHEAD_S = 0.1
# Smaller states come from one source.
CHUNK_BYTES = 4 * 2**20
# Into so many chunks for each source at most: finer ones balance hardly better.
CHUNKS_PER_SOURCE = 4


class Move(NamedTuple):
    """State of one layer on its way.

    Attributes:
        layer: Its index; of shared parameters the index of their owner.
        source: A device that holds it; None where none is left: it comes from a checkpoint.
        destination: The device that needs it.
        num_bytes: A part of the state where several sources share the work.
    """

    layer: int
    source: str | None
    destination: str
    num_bytes: int


class _Chunk(NamedTuple):
    """What one source sends in one piece."""

    layer: int
    sources: tuple[str, ...]
    destination: str
    num_bytes: int


def state_moves(
    problem: Problem, old_plan: Plan, new_plan: Plan, lost: Collection[str] = ()
) -> list[Move]:
    """What must travel so that every device holds the state of its layers.

    Each missing state is sent once. Where several devices hold it, the largest chunks are dealt
    first, each to the source whose link will be free first.

    Args:
        problem: Whose links carry the states; it may lack lost devices.
        old_plan: Who holds what.
        new_plan: Who needs what.
        lost: Devices that hold nothing any more.
    """
    held, needed = spans_by_device(old_plan), spans_by_device(new_plan)
    gone = {name for name in held if name in lost or name not in problem.device_named}
    alive = {name: layers for name, layers in held.items() if name not in gone}
    chunks: list[_Chunk] = []
    for part in state_parts(problem):
        holders = {name: span for name, own in alive.items() if (span := span_of(part, own))}
        for destination, layers in needed.items():
            wanted = span_of(part, layers)
            for span in cut(wanted, holders.values()) if wanted else ():
                sources = tuple(name for name, own in holders.items() if contains(own, span))
                if destination not in sources:
                    chunks += _chunks(part, span, sources, destination)
    return _dealt(problem, chunks)


def missing_layers(plan: Plan, lost: Collection[str]) -> tuple[int, ...]:
    """Layers of whose state no device that is left has some part.

    Args:
        plan: Who holds what.
        lost: Devices that hold nothing any more.
    """
    held = spans_by_device(plan)
    alive = {name: layers for name, layers in held.items() if name not in lost}
    gone = [layers for name, layers in held.items() if name in lost]
    found = []
    for layer in range(plan.num_layers):
        left = [layers[layer] for layers in alive.values() if layer in layers]
        is_whole = all(any(contains(own, span) for own in left) for span in cut(WHOLE, left))
        is_divided = (
            layer in plan.sharded_layers and sum(layer in s.layers for s in plan.stages) > 1
        )
        if not is_whole or (is_divided and any(layer in layers for layers in gone)):
            found.append(layer)
    return tuple(found)


def move_s(
    problem: Problem,
    moves: Iterable[Move],
    *,
    overhead_s: float = MOVE_OVERHEAD_S,
    storage_bytes_per_s: float = math.inf,
) -> float:
    """Predicted seconds until all states have arrived.

    Args:
        problem: Whose links carry them.
        moves: As `state_moves` has them.
        overhead_s: Beside the bytes, see `MOVE_OVERHEAD_S`.
        storage_bytes_per_s: Of the storage that gives what no device holds; all share it.
    """
    busy_s: dict[tuple[str, str], float] = defaultdict(float)
    latency_s: dict[tuple[str, str], float] = defaultdict(float)
    storage_s = 0.0
    for move in moves:
        if move.source is None:
            storage_s += move.num_bytes / storage_bytes_per_s
            continue
        channel = _channel(problem, move.source, move.destination)
        link = problem.link(move.source, move.destination)
        busy_s[channel] += move.num_bytes / link.bandwidth_bytes_per_s
        latency_s[channel] = max(latency_s[channel], link.latency_s)
    links_s = (seconds + latency_s[channel] for channel, seconds in busy_s.items())
    return overhead_s + max(storage_s, max(links_s, default=0.0))


def moved_bytes(moves: Iterable[Move]) -> int:
    """Bytes of all moves together."""
    return sum(move.num_bytes for move in moves)


def pays_back(
    gain_s: float,
    remaining_steps: int,
    move_s: float,
    horizon_steps: int | None = None,
    *,
    gain_spread_s: float = 0.0,
) -> bool:
    """Whether a move is worth it.

    Args:
        gain_s: What the new plan saves in each step, as predicted.
        remaining_steps: Steps that it will run.
        move_s: What the move costs.
        horizon_steps: It must pay within so many steps: later, all may be different again. None:
            within the remaining ones.
        gain_spread_s: Standard deviation of `gain_s`; so much of it does not count.
    """
    steps = remaining_steps if horizon_steps is None else min(remaining_steps, horizon_steps)
    return (gain_s - gain_spread_s) * steps > move_s


def _chunks(
    part: StatePart, span: Span, sources: tuple[str, ...], destination: str
) -> list[_Chunk]:
    num_bytes = round(part.num_bytes * (span[1] - span[0]))
    if num_bytes == 0:
        return []
    most = CHUNKS_PER_SOURCE * len(sources) if len(sources) > 1 else 1
    count = min(most, -(-num_bytes // CHUNK_BYTES))
    edges = [num_bytes * index // count for index in range(count + 1)]
    return [
        _Chunk(part.layer, sources, destination, stop - start) for start, stop in pairwise(edges)
    ]


def _dealt(problem: Problem, chunks: Sequence[_Chunk]) -> list[Move]:
    """Gives each chunk to a source; a move has all chunks of one layer, source and destination."""
    busy_s: dict[tuple[str, str], float] = defaultdict(float)
    leaving: dict[str, int] = defaultdict(int)
    found: dict[tuple[int, str | None, str], int] = defaultdict(int)
    for chunk in sorted(chunks, key=lambda chunk: -chunk.num_bytes):
        destination, source = chunk.destination, None
        if chunk.sources:
            done_s = {
                name: busy_s[_channel(problem, name, destination)]
                + chunk.num_bytes / problem.link(name, destination).bandwidth_bytes_per_s
                for name in chunk.sources
            }
            source = min(chunk.sources, key=lambda name: (done_s[name], leaving[name]))
            busy_s[_channel(problem, source, destination)] = done_s[source]
            leaving[source] += chunk.num_bytes
        found[chunk.layer, source, destination] += chunk.num_bytes
    moves = [Move(*key, num_bytes) for key, num_bytes in found.items()]
    return sorted(moves, key=lambda move: (-move.num_bytes, move.layer, move.destination))


def _channel(problem: Problem, source: str, destination: str) -> tuple[str, str]:
    """What carries one message at a time: a link between devices, or that between two nodes."""
    a, b = problem.device_named[source], problem.device_named[destination]
    return (source, destination) if a.node == b.node else (f"node {a.node}", f"node {b.node}")
