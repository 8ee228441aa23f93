"""Metis' layer balance: layers by the stages' capacities, greedily, and repaired for memory.

Each layer is cut into sub-layers. From the front each stage takes as many as its capacity has room
for; the last stage takes its own from the end; what is left in between goes to the stage of most
capacity. A layer then belongs to the stage with most of its sub-layers, and a few layers move where
that shortens the slowest stage and there is room. Where a stage has not enough memory, its capacity
shrinks and the others', as far as they have memory left, grow.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

# Of a layer; layers that may move in the end; how often memory is repaired, and by how much more
# than it seems to need.
SUB_LAYERS, MOST_MOVES, MOST_REPAIRS, SPARE = 7, 3, 3, 0.9
# What a sub-layer may be above the capacity that is left: rounding of sums.
ROUNDING = 1e-9

# Of a stage, by its index, with the layers `start .. stop - 1`.
OfStage = Callable[[int, int, int], float]


class Balanced(NamedTuple):
    """Layers behind each stage, and for each its bytes over its memory: above 1 it does not fit."""

    stops: tuple[int, ...]
    demand: tuple[float, ...]

    @property
    def fits(self) -> bool:
        """Whether all stages have room."""
        return max(self.demand) <= 1


def filled(work: Sequence[float], capacity: Sequence[float]) -> tuple[int, ...]:
    """Layers behind each stage, by capacities alone.

    Args:
        work: Of each layer, in all 1; at least as many layers as stages.
        capacity: Of each stage, in all 1.
    """
    done = _sub_layers(tuple(work))
    counts, start = [], 0
    for room in capacity[:-1]:
        stop = bisect_right(done, done[start] + room + ROUNDING) - 1
        counts.append(stop - start)
        start = stop
    from_end = bisect_left(done, done[-1] - capacity[-1] - ROUNDING, start)
    counts.append(len(done) - 1 - from_end)
    counts[max(range(len(capacity)), key=lambda stage: capacity[stage])] += from_end - start
    return _by_majority(list(accumulate(counts)), len(work))


@lru_cache(maxsize=8)
def _sub_layers(work: tuple[float, ...]) -> list[float]:
    """Work of the sub-layers in front of each, and of all."""
    return [0.0, *accumulate(own / SUB_LAYERS for own in work for _ in range(SUB_LAYERS))]


def _by_majority(cuts: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """Whole layers from sub-layers behind each stage; each stage has a layer at least."""
    edges, num_stages = [0, *cuts], len(cuts)
    stops, behind = [], 0
    for stage, cut in enumerate(cuts):
        whole, rest = divmod(cut, SUB_LAYERS)
        if rest:
            # A layer in parts: the stage with most of them has it, the first of equal ones.
            start, stop = cut - rest, cut - rest + SUB_LAYERS
            first, last = bisect_right(edges, start) - 1, bisect_left(edges, stop)
            inner = (start, *edges[first + 1 : last], stop)
            parts = [end - begin for begin, end in pairwise(inner)]
            whole += first + parts.index(max(parts)) <= stage
        behind = min(max(behind + 1, whole), num_layers - (num_stages - 1 - stage))
        stops.append(behind)
    return tuple(stops)


def moved(stops: tuple[int, ...], stage_s: OfStage, demand: OfStage) -> tuple[int, ...]:
    """After up to `MOST_MOVES` moves of a layer from the slowest stage to a neighbour with room."""
    for _ in range(MOST_MOVES):
        seconds = _of_all(stops, stage_s)
        slowest = seconds.index(max(seconds))
        edges = [0, *stops]
        if edges[slowest + 1] - edges[slowest] == 1:
            break
        tried = []
        # Its first layer to the stage in front, its last one to the stage behind.
        for edge, step, to in ((slowest, 1, slowest - 1), (slowest + 1, -1, slowest + 1)):
            if 0 <= to < len(stops):
                changed = edges.copy()
                changed[edge] += step
                if demand(to, changed[to], changed[to + 1]) <= 1:
                    tried.append(tuple(changed[1:]))
        better = min(tried, key=lambda each: max(_of_all(each, stage_s)), default=stops)
        if max(_of_all(better, stage_s)) >= max(seconds):
            break
        stops = better
    return stops


def balanced(
    work: Sequence[float], capacity: Sequence[float], stage_s: OfStage, demand: OfStage
) -> Balanced:
    """Layers by capacity, repaired for memory up to `MOST_REPAIRS` times.

    Args:
        work: As in `filled`.
        capacity: As in `filled`.
        stage_s: Seconds of a stage.
        demand: Bytes of a stage over its memory.
    """
    shares = list(capacity)
    for tried in range(MOST_REPAIRS + 1):
        quick = moved(filled(work, shares), stage_s, demand)
        found = Balanced(quick, tuple(_of_all(quick, demand)))
        if found.fits or tried == MOST_REPAIRS:
            return found
        shares = _repaired(shares, found.demand)
    raise AssertionError("the last try returns")


def _repaired(shares: Sequence[float], demand: Sequence[float]) -> list[float]:
    """Capacity moves from stages without enough memory to the others, by the room they have."""
    kept = [
        share * SPARE / need if need > 1 else share
        for share, need in zip(shares, demand, strict=True)
    ]
    room = [max(0.0, 1 - need) * own for need, own in zip(demand, kept, strict=True)]
    surplus, total = sum(shares) - sum(kept), sum(room)
    if total <= 0:
        return kept
    return [own + surplus * free / total for own, free in zip(kept, room, strict=True)]


def _of_all(stops: Sequence[int], of_stage: OfStage) -> list[float]:
    return [of_stage(index, *edge) for index, edge in enumerate(pairwise((0, *stops)))]
