"""A synthetic twin of AMP's GPT-2 cell: our splits beside AMP's own method, under AMP's cost.

AMP (Li et al., NeurIPS 2022) enumerates degrees (tp, dp, pp) and micro-batch sizes. Its published
cell, GPT-2 of 24 layers, batch 32, on four nodes of four GPUs of which one has slow links inside
and fast ones outside, needs profiles that are not free to copy; the twin has the same model and
cluster, and layer times from FLOPs. For each choice of degrees AMP splits the layers with a dynamic
programme for the pipeline alone, and adds the all-reduce of the slowest stage afterwards:

    (B - 1) max_stage + sum of stages + sum of messages + 2 (d - 1) / d most parameters / bandwidth

Ours begin at an even split and at the optima of the exact solver with the all-reduce priced, less
so, and not at all. AMP's formula then judges small moves of the cuts and chooses, as the simulator
does elsewhere. The least that any split of as many stages costs stands beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations, pairwise
from typing import NamedTuple

import numpy as np

from heterps_agents.exact.solve import solve
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import decode
from heterps_envs.cost_tables import CostTables

LAYERS, HIDDEN, LENGTH, WORDS, BATCH = 24, 1024, 1024, 52256, 32
NODES, GPUS_OF_NODE = 4, 4
# Bytes per second: between nodes, inside most of them, inside the other one.
OUTSIDE, INSIDE, INSIDE_SLOW = 10e9 / 8, 170e9 / 8, 50e9 / 8
# What a GPU reaches; weights and activations are float32.
FLOPS_PER_S, FLOAT_BYTES = 6e12, 4
# How dear the all-reduce is to the exact solver.
PRICES = (1.0, 2.0, 0.5, 0.0)
# The degrees that were looked at in AMP's repository: micro-batch size, tp, dp, pp.
CELLS = ((1, 1, 4, 4), (1, 1, 2, 8), (1, 2, 2, 4), (2, 1, 4, 4), (1, 1, 8, 2))


class Degrees(NamedTuple):
    """What AMP enumerates."""

    micro_batch_size: int
    tensor_parallel: int
    replicas: int
    stages: int


@dataclass(frozen=True)
class Case:
    """The cost of one choice of degrees.

    Attributes:
        compute_s: (L,) of a micro-batch, forward and backward.
        parameters: (L,) on one GPU.
        micro_batches: Of one pipeline.
        message_s: From stage to stage.
        seconds_per_parameter: Of the slowest ring; 0 without replicas.
    """

    compute_s: tuple[float, ...]
    parameters: tuple[float, ...]
    micro_batches: int
    stages: int
    message_s: float
    seconds_per_parameter: float

    def cost_s(self, stops: Sequence[int]) -> float:
        """Of stages that end at these layers."""
        edges = list(pairwise((0, *stops)))
        stages = [sum(self.compute_s[a:b]) for a, b in edges]
        most = max(sum(self.parameters[a:b]) for a, b in edges)
        passes_s = (self.micro_batches - 1) * max(stages) + sum(stages)
        return passes_s + self.message_s * (len(stages) - 1) + most * self.seconds_per_parameter


def case_of(degrees: Degrees) -> Case:
    """GPT-2 with an embedding in front and a head behind, which share no parameters here."""
    size, tp, replicas, stages = degrees
    block, words = 12 * HIDDEN * HIDDEN, WORDS * HIDDEN
    samples = 3 * 2 * size * LENGTH / FLOPS_PER_S / tp
    slow = INSIDE_SLOW if tp * replicas * stages == NODES * GPUS_OF_NODE else INSIDE
    ring_bytes = 2 * (tp - 1) / tp * size * LENGTH * HIDDEN * FLOAT_BYTES
    sums_s = 4 * ring_bytes / slow
    attention = 2 * LENGTH * HIDDEN
    # Neighbours of a ring or a pipeline are on one node as long as all of it is.
    ring = OUTSIDE if tp * replicas > GPUS_OF_NODE else slow
    neighbour = OUTSIDE if stages > 1 else slow
    share = 2 * (replicas - 1) / replicas * FLOAT_BYTES / ring if replicas > 1 else 0.0
    return Case(
        (samples * HIDDEN, *[samples * (block + attention) + sums_s] * LAYERS, samples * words),
        (words / tp, *[block / tp] * LAYERS, words / tp),
        BATCH // (size * replicas),
        stages,
        2 * size * LENGTH * HIDDEN * FLOAT_BYTES / neighbour,
        share,
    )


def all_degrees() -> Iterator[Degrees]:
    """All that use every GPU, with tensor parallelism inside nodes."""
    gpus = NODES * GPUS_OF_NODE
    for size in (1, 2, 4, 8):
        for tp in (1, 2, 4):
            for replicas in (1, 2, 4, 8, 16):
                stages = gpus // (tp * replicas)
                if tp * replicas * stages == gpus and BATCH % (size * replicas) == 0:
                    yield Degrees(size, tp, replicas, stages)


def amp_split(case: Case) -> tuple[int, ...]:
    """AMP's: the shortest pipeline, whatever its all-reduce takes; the first of equal ones."""
    layers = len(case.compute_s)
    sums = np.concatenate([[0.0], np.cumsum(case.compute_s)])

    @cache
    def best(start: int, left: int) -> tuple[float, tuple[int, ...]]:
        if left == 1:
            return float(sums[-1] - sums[start]), (layers,)
        found = []
        for stop in range(start + 1, layers - left + 2):
            slowest, behind = best(stop, left - 1)
            found.append((max(float(sums[stop] - sums[start]), slowest), (stop, *behind)))
        return min(found)

    return best(0, case.stages)[1]


def our_split(case: Case) -> tuple[int, ...]:
    """The best by AMP's formula of what small moves make of several splits."""
    layers = len(case.compute_s)
    even = tuple(layers * (index + 1) // case.stages for index in range(case.stages))
    starts = {even, *(_solved(case, price) for price in PRICES)}
    return min((_moved(case, stops) for stops in sorted(starts) if stops), key=case.cost_s)


def _moved(case: Case, stops: tuple[int, ...]) -> tuple[int, ...]:
    """Runs of neighbouring cuts move by a layer or two while that is better."""
    best_s, is_better = case.cost_s(stops), True
    while is_better:
        is_better = False
        for first, last in combinations(range(case.stages), 2):
            for move in (1, -1, 2, -2):
                cuts = [s + move * (first <= i < last) for i, s in enumerate(stops)]
                if all(a < b for a, b in pairwise((0, *cuts))) and case.cost_s(cuts) < best_s:
                    stops, best_s, is_better = tuple(cuts), case.cost_s(cuts), True
    return stops


def least_s(case: Case) -> float:
    """The optimum: for each front, the splits that no other beats in time and in parameters."""
    layers = len(case.compute_s)
    sums = [0.0, *accumulate(case.compute_s)]
    counts = [0.0, *accumulate(case.parameters)]
    fronts: list[set[tuple[float, float]]] = [set() for _ in range(layers + 1)]
    fronts[0] = {(0.0, 0.0)}
    for _ in range(case.stages):
        longer: list[set[tuple[float, float]]] = [set() for _ in range(layers + 1)]
        for stop in range(1, layers + 1):
            pairs = sorted(
                (max(t, sums[stop] - sums[start]), max(p, counts[stop] - counts[start]))
                for start in range(stop)
                for t, p in fronts[start]
            )
            fewest = math.inf
            for slowest, most in pairs:
                if most < fewest:
                    longer[stop].add((slowest, most))
                    fewest = most
        fronts = longer
    fixed_s = sums[-1] + case.message_s * (case.stages - 1)
    return fixed_s + min(
        (case.micro_batches - 1) * t + p * case.seconds_per_parameter for t, p in fronts[layers]
    )


def _solved(case: Case, price: float) -> tuple[int, ...]:
    """The optimum of a pipeline of that many stages, or of fewer where these are faster."""
    compute_s = np.array(case.compute_s)[:, None]
    layers, free = len(compute_s), np.zeros((1, 1))
    reduce_s = price * case.seconds_per_parameter * np.array(case.parameters)[:, None]
    tables = CostTables(
        num_micro_batches=case.micro_batches,
        is_gpipe=False,
        forward_s=compute_s / 3,
        backward_s=compute_s * 2 / 3,
        optimizer_s=reduce_s,
        state_bytes=np.ones(layers),
        gradient_bytes=np.full(layers, 1e15),  # replicas are in the case already
        activation_bytes=np.zeros(layers),
        output_bytes=np.zeros(layers),
        device_count=np.array([case.stages]),
        memory_bytes=np.array([1e9]),
        price_usd_per_hour=np.ones(1),
        latency_s=free,
        inverse_bandwidth_s_per_byte=free + 1.0,
    )
    code = solve(kernel_tables(tables)).code
    if code is None:
        return ()
    stops = tuple(stage.last_layer + 1 for stage in decode(code))
    return stops if len(stops) == case.stages else ()
