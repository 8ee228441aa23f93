"""Even plans of a slice of the model on an island of equal devices, without those dominated.

A plan says a way to carry out its stages (degree, recomputation, shards), how many stages there
are, and how many replicas each of them has. Stages have equally many layers of the model's most
frequent kind; what lies in front of such layers, or behind them, goes with its neighbours.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.tangram.kernels import (
    NUM_COSTS,
    all_plan_costs,
    keep_undominated,
    stage_starts,
)
from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.options import StageOption, option_tables
from heterps_envs.problem import Problem

# Models of more layers are sliced at so many cuts, and at no fewer than these where time is short.
MOST_CUTS, LEAST_CUTS = 96, 8
# Plans of slices that are looked at in a second, about.
PLANS_PER_S = 500_000


class Islands(NamedTuple):
    """What there is to compose.

    Attributes:
        cuts: (G + 1,) layers in front of each cut where slices may end; from 0 to all.
        options: Ways to carry out a stage; each is of one island, a device class.
        kernel: Their costs.
        latency_s: (T, T) from island to island.
        inverse_bandwidth: (T, T) seconds per byte.
        counted: (C,) layers of which stages have equal numbers.
        before: (L + 1,) of them, how many are in front of a layer.
    """

    cuts: Integers
    options: tuple[StageOption, ...]
    kernel: KernelTables
    latency_s: Floats
    inverse_bandwidth: Floats
    counted: Integers
    before: Integers

    def link(self, front: int, behind: int) -> tuple[float, Floats]:
        """Latency from one island to another, and (G + 1,) seconds of the bytes over each cut."""
        num_bytes = self.kernel.output_bytes[self.cuts - 1]
        transfer_s = num_bytes * self.inverse_bandwidth[front, behind]
        return float(self.latency_s[front, behind]), transfer_s


class PartialPlans(NamedTuple):
    """N plans, by island and the cut at their end.

    Attributes:
        island: (N,) index of the device class.
        first_cut: (N,) index of the cut in front of the slice.
        end_cut: (N,) index of the cut behind it.
        shape: (N, 3) option, stages, replicas.
        costs: (N, NUM_COSTS) see `kernels`.
        offsets: For each island, (G + 2,) where the plans that end at each cut begin.
    """

    island: Integers
    first_cut: Integers
    end_cut: Integers
    shape: Integers
    costs: Floats
    offsets: tuple[Integers, ...]


def islands_of(
    problem: Problem, options: tuple[StageOption, ...], seconds: float = math.inf
) -> Islands:
    """The device classes of a problem as islands.

    Args:
        problem: What is asked.
        options: That stages may be carried out by.
        seconds: That there are: if they are few, slices end at fewer cuts.
    """
    num_layers = problem.profile.num_layers
    kinds = [layer.kind for layer in problem.profile.layers]
    most, count = Counter(kinds).most_common(1)[0]
    is_counted = np.array([kind == most for kind in kinds]) | (2 * count < num_layers)
    islands = Islands(
        cuts=_cuts(num_layers, MOST_CUTS),
        options=options,
        kernel=kernel_tables(option_tables(problem, options)),
        latency_s=problem.tables.latency_s,
        inverse_bandwidth=problem.tables.inverse_bandwidth_s_per_byte,
        counted=np.flatnonzero(is_counted),
        before=np.concatenate([[0], np.cumsum(is_counted)]),
    )
    if math.isinf(seconds):
        return islands
    num_shapes = sum(len(even_shapes(islands, kind)) for kind in range(len(problem.classes)))
    num_cuts = math.isqrt(int(2 * seconds * PLANS_PER_S / max(num_shapes, 1)))
    return islands._replace(cuts=_cuts(num_layers, min(max(num_cuts, LEAST_CUTS), MOST_CUTS)))


def _cuts(num_layers: int, most: int) -> Integers:
    return np.unique(np.linspace(0, num_layers, min(num_layers, most) + 1).astype(np.int64))


def partial_plans(islands: Islands, only_undominated: bool = True) -> PartialPlans:
    """The plans of every slice on every island that have memory for themselves.

    Args:
        islands: What there is.
        only_undominated: Without those that another plan of the same slice and island is at least
            as good as, in everything.
    """
    num_cuts = len(islands.cuts)
    ends, firsts = np.tril_indices(num_cuts, -1)
    slices = islands.cuts[np.stack([firsts, ends], axis=1)]
    found, offsets, total = [], [], 0
    for island in range(islands.kernel.num_classes):
        shapes = even_shapes(islands, island)
        costs = np.empty((len(slices), len(shapes), NUM_COSTS))
        fits = np.zeros((len(slices), len(shapes)), np.bool_)
        starts = np.empty(int(shapes[:, 1].max(initial=1)) + 1, np.int64)
        tables = islands.counted, islands.before, shapes
        all_plan_costs(islands.kernel, tables, slices, starts, costs, fits)
        slice_of, shape_of = np.nonzero(fits)
        own = costs[slice_of, shape_of]
        if only_undominated:
            keeps = undominated(own, slice_of)
            slice_of, shape_of, own = slice_of[keeps], shape_of[keeps], own[keeps]
        found.append(
            (np.full(len(own), island), firsts[slice_of], ends[slice_of], shapes[shape_of], own)
        )
        offsets.append(total + np.searchsorted(ends[slice_of], np.arange(num_cuts + 1)))
        total += len(slice_of)
    island_of, first, end, shape, cost = map(np.concatenate, zip(*found, strict=True))
    return PartialPlans(island_of, first, end, shape, cost, tuple(offsets))


def even_shapes(islands: Islands, island: int) -> Integers:
    """(P, 3) option, stages and replicas of the even plans of an island.

    Stages and replicas are powers of two and what divides; replicas besides as many as there are
    devices for, and no more than micro-batches.
    """
    kernel = islands.kernel
    most = min(kernel.num_micro_batches, MAX_REPLICAS)
    found = []
    for index, option in enumerate(islands.options):
        if option.device_class != island:
            continue
        groups = int(kernel.device_count[island]) // option.degree
        for stages in sorted(_usual(groups, min(groups, kernel.num_layers))):
            fitting = min(groups // stages, most)
            for replicas in sorted(_usual(groups, fitting) | {fitting}):
                if replicas > 1 or not option.shards_state:
                    found.append((index, stages, replicas))
    return np.array(found, np.int64).reshape(-1, 3)


def undominated(costs: Floats, group: Integers) -> np.ndarray:
    """(N,) whether no other one of the group is at least as good in everything.

    Args:
        costs: (N, K) all better when smaller.
        group: (N,)
    """
    order = np.lexsort((*costs.T[::-1], group))
    keeps = np.zeros(len(costs), np.bool_)
    costs, group = np.ascontiguousarray(costs), np.ascontiguousarray(group)
    keep_undominated(costs, order, group, np.empty(len(costs), np.int64), keeps)
    return keeps


def stages_of(islands: Islands, plans: PartialPlans, index: int) -> list[PlacedStage]:
    """The stages of a plan, from the front."""
    option, num_stages, replicas = plans.shape[index].tolist()
    first, stop = islands.cuts[[plans.first_cut[index], plans.end_cut[index]]].tolist()
    starts = np.empty(num_stages + 1, np.int64)
    stage_starts(first, stop, islands.counted, islands.before, starts)
    way = islands.options[option]
    return [
        PlacedStage(
            int(start),
            int(end) - 1,
            way.device_class,
            replicas,
            degree=way.degree,
            recompute=way.memory == "recompute",
            offload=way.memory == "offload",
            shards_state=way.shards_state,
        )
        for start, end in pairwise(starts)
    ]


def _usual(whole: int, most: int) -> set[int]:
    """Up to `most`, what divides a number, and powers of two."""
    divisors = {number for number in range(1, most + 1) if whole % number == 0}
    return divisors | {2**power for power in range(most.bit_length())}
