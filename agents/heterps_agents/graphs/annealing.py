"""Simulated annealing of graph placements under the graph simulator.

A step changes the placement in one of the ways of `heterps_agents.graphs.moves`. Worse placements
are accepted with the probability exp(-log(cost ratio) / temperature) (Kirkpatrick, Gelatt and
Vecchi, 1983). Placements that exceed memory cost more the more they do. Where other placements are
known, samples of a policy for example, a step may also take over a piece of one of them. Where
memory does not hold what a step changes, other nodes make room.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.graphs.annealing_kernels import Search, anneal_chunk, placement_cost
from heterps_agents.graphs.earliest_finish import simple_placement
from heterps_agents.interface.chunks import Chunk, chunks
from heterps_agents.interface.planner import Budget
from heterps_envs.graphs.problem import GraphProblems, GraphTables, Placement, pack_graphs
from heterps_envs.graphs.resimulation import empty_blocks
from heterps_envs.graphs.simulator import empty_row, overflow_of

DEFAULT_EVALUATIONS = 30_000
# Of a start from a simple rule, and of one that is good already; for graphs of up to `_USUAL_NODES`
# nodes. In larger ones a single node matters less, and so must the temperature.
START_TEMPERATURE, POLISH_TEMPERATURE = 0.02, 0.01
_USUAL_NODES, _COOLING = 32, 1.5
# Of `anneal_from_starts`: how many there are, which share of the budget each gets, and the smallest
# budget that is shared.
_STARTS, _SHARE_OF_START, _LEAST_SHARED_EVALUATIONS = 3, 1 / 6, 6_000


class Share(NamedTuple):
    """What one of several searches may use of a budget.

    Attributes:
        max_evaluations: Stop there even if the budget allows more.
        begin, end: Where in a limit in seconds it begins and ends, 0 to 1.
    """

    max_evaluations: int | None = None
    begin: float = 0.0
    end: float = 1.0


ALL = Share()


def anneal_graph(
    tables: GraphTables,
    budget: Budget,
    seed: int,
    *,
    start: Placement | None = None,
    temperature: float = START_TEMPERATURE,
    max_evaluations: int | None = None,
) -> Placement | None:
    """The best placement seen by simulated annealing; never a worse one than the start.

    Args:
        tables: The problem.
        budget: What may be spent.
        seed: Equal seeds give equal placements, unless a limit in seconds ends the search.
        start: (V,) to begin with; it need not fit. By default the best
            simple placement (`heterps_agents.graphs.earliest_finish`).
        temperature: At the start, of a graph of up to 32 nodes; of V nodes (32 / V) ** 1.5 of it.
            It falls linearly to zero. 0.02 accepts 1.02 times the cost with a probability of 1 / e.
        max_evaluations: Stop there even if the budget allows more. Without this and any limit in
            the budget, `DEFAULT_EVALUATIONS`.

    Returns:
        (V,) int16; None if nothing seen fits.

    Raises:
        HeterpsError: A node can run on no device.
    """
    problems = pack_graphs([tables])
    if start is None:
        start = simple_placement(problems, 0, budget)
    starts = [start] * _STARTS
    best, cost = anneal_from_starts(problems, 0, starts, budget, seed, temperature, max_evaluations)
    return best if math.isfinite(cost) else None


def anneal_from_starts(
    problems: GraphProblems,
    row: int,
    starts: Sequence[Placement],
    budget: Budget,
    seed: int,
    temperature: float = START_TEMPERATURE,
    max_evaluations: int | None = None,
    others: Placement | None = None,
) -> tuple[Placement, float]:
    """Anneals from each start for a while, then for the rest of the budget from the best end.

    Where a search ends depends much on where it begins, and on its first draws. Small budgets are
    not shared: all goes to the first start.

    Args:
        problems: Packed problems.
        row: Which one.
        starts: (V,) placements, the most promising first.
        budget: As for `anneal_graph`.
        seed: The same.
        temperature: The same; half of it for the rest of the budget.
        max_evaluations: The same.
        others: As for `anneal_packed_graph`.

    Returns:
        The same.
    """
    limits = [n for n in (budget.evaluations_left, max_evaluations) if n is not None]
    total = min(limits, default=None if budget.has_time_limit else DEFAULT_EVALUATIONS)
    if len(starts) == 1 or (total is not None and total < _LEAST_SHARED_EVALUATIONS):
        return anneal_packed_graph(
            problems, row, starts[0], budget, seed, temperature, Share(total), others
        )
    begin, ends = budget.time_share, list[tuple[Placement, float]]()
    each = None if total is None else int(total * _SHARE_OF_START)
    for number, start in enumerate(starts):
        first, last = (begin + (1 - begin) * _SHARE_OF_START * (number + n) for n in (0, 1))
        ends.append(
            anneal_packed_graph(
                problems, row, start, budget, [seed, number], temperature,
                Share(each, first, last), others,
            )
        )  # fmt: skip
    ends.sort(key=lambda end: end[1])
    nodes, known = int(problems.num_nodes[row]), [] if others is None else list(others)
    known += [end[:nodes] for end, _ in ends[1:]]
    rest = None if total is None or each is None else total - each * len(starts)
    last_end = anneal_packed_graph(
        problems, row, ends[0][0], budget, seed, temperature / 2, Share(rest, last),
        np.array([placement[:nodes] for placement in known]),
    )  # fmt: skip
    return min(ends[0], last_end, key=lambda end: end[1])


def anneal_packed_graph(
    problems: GraphProblems,
    row: int,
    start: Placement,
    budget: Budget,
    seed: int | list[int],
    temperature: float = START_TEMPERATURE,
    share: Share = ALL,
    others: Placement | None = None,
) -> tuple[Placement, float]:
    """Annealing from one start on one row of packed problems.

    Args:
        problems: Packed problems.
        row: Which one.
        start: As for `anneal_graph`.
        budget: The same.
        seed: The same.
        temperature: The same.
        share: What it may use of the budget.
        others: (K, V) complete placements, every node on a device that can run it, of which pieces
            are taken over.

    Returns:
        (V,) int16 of the best placement seen, and its step time; inf if nothing seen fits.
    """
    nodes = int(problems.num_nodes[row])
    able, num_able = able_devices(problems, row)
    current = np.zeros(problems.max_nodes, np.int16)
    current[:nodes] = start[:nodes]
    repair(current[:nodes], able, num_able)
    search = _started(problems, row, current, able, num_able)
    known = np.zeros((0, nodes), np.int16) if others is None else others
    temperature *= min(1.0, _USUAL_NODES / nodes) ** _COOLING
    for chunk in _chunks(budget, seed, share):
        anneal_chunk(
            problems, row, chunk.evaluations, chunk.rng,
            temperature * (1 - chunk.start), temperature * (1 - chunk.stop),
            search, known,
        )  # fmt: skip
    fits = overflow_of(problems, row, search.best, search.scratch) == 0
    return search.best[:nodes], float(search.costs[1]) if fits else math.inf


def _chunks(budget: Budget, seed: int | list[int], share: Share) -> Iterator[Chunk]:
    """As `heterps_agents.interface.chunks.chunks`, within a part of the time."""
    (max_evaluations, begin, end), done = share, 0
    # The rest of a share that is over is no time; what comes after it needs some.
    length = max(end - begin, 1e-9)
    for chunk in chunks(budget, DEFAULT_EVALUATIONS, seed, max_evaluations):
        if not budget.has_time_limit:
            yield chunk
            continue
        elapsed = max(0.0, (budget.time_share - begin) / length)
        if elapsed >= 1.0:
            return
        total = max_evaluations or math.inf
        start, stop = (max(elapsed, n / total) for n in (done, done + chunk.evaluations))
        yield chunk._replace(start=start, stop=min(1.0, stop))
        done += chunk.evaluations


def _started(
    problems: GraphProblems,
    row: int,
    start: Placement,
    able: Placement,
    num_able: NDArray[np.int64],
) -> Search:
    devices = problems.max_devices
    cost = placement_cost(problems, row, start, empty_row(problems))[0]
    return Search(
        start, start.copy(), start.copy(), np.zeros(problems.max_nodes, np.int64),
        np.full(2, cost), np.zeros(devices), np.zeros(devices), empty_blocks(problems, row),
        able, num_able,
    )  # fmt: skip


def able_devices(problems: GraphProblems, row: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """(V, D) the devices that can run each node, in front, and (V,) how many there are."""
    nodes, devices = problems.num_nodes[row], problems.num_devices[row]
    runs = np.isfinite(problems.forward_s[row, :nodes, :devices])
    runs &= problems.memory_bytes[row, :nodes, None] <= problems.device_memory_bytes[row, :devices]
    return np.argsort(~runs, axis=1, kind="stable").astype(np.int16), runs.sum(axis=1)


def repair(devices: Placement, able: NDArray[np.int16], num_able: NDArray[np.int64]) -> None:
    """Moves nodes that their device cannot run to one that can, in place."""
    for node, device in enumerate(devices):
        if device not in able[node, : num_able[node]]:
            devices[node] = able[node, 0]
