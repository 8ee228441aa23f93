"""Moves: which layer states travel between devices when one plan follows another, and how long.

The state of a layer is what its device must not lose: parameters, what the optimizer keeps of them
(master weights included) and buffers. Gradients are none: plans change between steps. A device that
holds a layer under both plans receives nothing for it. Parameters that several layers share are
there once on each device. Of a tensor-parallel group each device holds its share, and needs what of
its share under the new plan it has not.

Seconds follow the simulator's rules: the link between two devices carries one message at a time in
each direction. Between two nodes, all devices share one link, because states are large enough to
fill it. Which devices of equal kind a new plan uses is free to choose; `keep_in_place` chooses
those that hold most already, as Malleus does (arXiv 2410.13333, section 5).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.plan import Plan
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


class _Part(NamedTuple):
    """State that a device holds once, if it holds any of some layers."""

    layer: int
    used_by: frozenset[int]
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
    held, needed = _spans_by_device(old_plan), _spans_by_device(new_plan)
    gone = {name for name in held if name in lost or name not in problem.device_named}
    alive = {name: layers for name, layers in held.items() if name not in gone}
    chunks: list[_Chunk] = []
    for part in _parts(problem):
        holders = {name: span for name, own in alive.items() if (span := _span_of(part, own))}
        for destination, layers in needed.items():
            wanted = _span_of(part, layers)
            for span in _cut(wanted, holders.values()) if wanted else ():
                sources = tuple(name for name, own in holders.items() if _has(own, span))
                if destination not in sources:
                    chunks += _chunks(part, span, sources, destination)
    return _dealt(problem, chunks)


def missing_layers(plan: Plan, lost: Collection[str]) -> tuple[int, ...]:
    """Layers of whose state no device that is left has some part.

    Args:
        plan: Who holds what.
        lost: Devices that hold nothing any more.
    """
    held = _spans_by_device(plan)
    alive = {name: layers for name, layers in held.items() if name not in lost}
    gone = [layers for name, layers in held.items() if name in lost]
    found = []
    for layer in range(plan.num_layers):
        left = [layers[layer] for layers in alive.values() if layer in layers]
        is_whole = all(any(_has(own, span) for own in left) for span in _cut(_WHOLE, left))
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


def keep_in_place(problem: Problem, old_plan: Plan, new_plan: Plan) -> Plan:
    """The same plan on those of the equal devices that hold most of what they need.

    Devices are equal when nothing in the problem tells them apart: their class, their node unless
    they are alone on it, and their links to all others. So the simulated step time stays the same
    to the last bit, and no fewer bytes could be moved.

    Args:
        problem: What the new plan was made for; it lacks devices that are lost.
        old_plan: Who holds what.
        new_plan: Whose devices are exchanged for equal ones.
    """
    held, needed = _spans_by_device(old_plan), _spans_by_device(new_plan)
    parts = _parts(problem)
    num_bytes = np.array([part.num_bytes for part in parts], float)
    renamed: dict[str, str] = {}
    for group in _equal_devices(problem):
        roles = [name for name in group if name in needed]
        wanted = _edges(parts, [needed[role] for role in roles])
        there = _edges(parts, [held.get(name, {}) for name in group])
        starts = np.maximum(wanted[0][:, None], there[0])
        stays = np.maximum(np.minimum(wanted[1][:, None], there[1]) - starts, 0.0)
        overlap = stays @ num_bytes
        # Of equal overlaps the one that renames least; together these count less than a byte.
        for row, role in enumerate(roles):
            overlap[row, group.index(role)] += 0.5 / len(roles)
        rows, columns = linear_sum_assignment(overlap, maximize=True)
        renamed |= {roles[row]: group[column] for row, column in zip(rows, columns, strict=True)}
    if all(before == after for before, after in renamed.items()):
        return new_plan
    stages = tuple(
        stage.changed(devices=tuple(renamed[name] for name in stage.devices))
        for stage in new_plan.stages
    )
    return new_plan.changed(stages=stages)


# From where to where of the state of a layer, as shares of it, a device has it.
_Span = tuple[float, float]
_WHOLE: _Span = (0.0, 1.0)


def _spans_by_device(plan: Plan) -> dict[str, dict[int, _Span]]:
    """What of each layer the devices of a plan hold."""
    found: dict[str, dict[int, _Span]] = defaultdict(dict)
    for stage in plan.stages:
        shares = stage.tensor_shares or (1 / stage.degree,) * stage.degree
        ends = [0.0, *accumulate(shares[:-1]), 1.0]
        for name, span in zip(stage.devices, pairwise(ends), strict=True):
            found[name].update(dict.fromkeys(stage.layers, span))
            found[name].update(dict.fromkeys(stage.unsplit_layers, _WHOLE))
    return found


def _span_of(part: _Part, layers: Mapping[int, _Span]) -> _Span | None:
    """What of a part a device holds that holds so much of some layers; None: nothing."""
    spans = [layers[layer] for layer in part.used_by if layer in layers]
    return (min(spans)[0], max(end for _, end in spans)) if spans else None


def _cut(span: _Span, others: Iterable[_Span]) -> Iterator[_Span]:
    """A span in parts, each of which lies inside or outside of each of the others."""
    edges = {end for other in others for end in other if span[0] < end < span[1]}
    return pairwise(sorted({*span, *edges}))


def _has(span: _Span, part: _Span) -> bool:
    return span[0] <= part[0] and part[1] <= span[1]


def _parts(problem: Problem) -> list[_Part]:
    """All states that are not empty; shared parameters apart from those of their layers."""
    job, layers = problem.job, problem.profile.layers
    own = [layer.num_parameters for layer in layers]
    # Of a parameter of each layer, on average: frozen ones have no state of the optimizer.
    trained = [layer.trained_parameters / max(layer.num_parameters, 1) for layer in layers]
    weight, state = job.weight_bytes_per_parameter, job.optimizer_bytes_per_parameter
    num_bytes = [weight + state * share for share in trained]
    parts: list[_Part] = []
    for owner, users in problem.profile.tied_layers.items():
        shared = min(max(layers[user].tied_parameters for user in users), own[owner])
        own[owner] -= shared
        for user in users:
            own[user] -= layers[user].tied_parameters
        parts.append(_Part(owner, frozenset((owner, *users)), round(shared * num_bytes[owner])))
    parts += [
        _Part(index, frozenset((index,)), round(own[index] * num_bytes[index]) + layer.buffer_bytes)
        for index, layer in enumerate(layers)
    ]
    return [part for part in parts if part.num_bytes > 0]


def _chunks(part: _Part, span: _Span, sources: tuple[str, ...], destination: str) -> list[_Chunk]:
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


def _edges(
    parts: Sequence[_Part], devices: Sequence[Mapping[int, _Span]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(devices, parts) each: from where to where of each part a device has it, as shares of it."""
    spans = [[_span_of(part, layers) or (0.0, 0.0) for part in parts] for layers in devices]
    both = np.array(spans, float).reshape(len(devices), len(parts), 2)
    return both[..., 0], both[..., 1]


def _equal_devices(problem: Problem) -> list[list[str]]:
    """The cluster's devices in groups of equal ones."""
    nodes = {node.name: node for node in problem.cluster.nodes}
    on_node: Mapping[str, list[str]] = defaultdict(list)
    for device in problem.cluster.devices:
        on_node[device.node].append(device.name)
    groups: dict[tuple[int, str, str], list[list[str]]] = {}
    for device in problem.cluster.devices:
        is_alone = len(on_node[device.node]) == 1
        host = nodes[device.node].host.model_dump_json() if is_alone else ""
        kind = problem.class_of[device.name], "" if is_alone else device.node, host
        alike = groups.setdefault(kind, [])
        own = next((g for g in alike if _links_are_equal(problem, g[0], device.name)), None)
        if own is None:
            alike.append([device.name])
        else:
            own.append(device.name)
    return [group for alike in groups.values() for group in alike]


def _links_are_equal(problem: Problem, a: str, b: str) -> bool:
    """Whether two devices have the same links to and from all others, and between them."""

    def ends(first: str, second: str) -> tuple[Link, Link]:
        return problem.link(first, second), problem.link(second, first)

    there, back = ends(a, b)
    others = (device.name for device in problem.cluster.devices if device.name not in (a, b))
    return there == back and all(ends(a, other) == ends(b, other) for other in others)
