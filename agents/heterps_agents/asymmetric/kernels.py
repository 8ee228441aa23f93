"""Compiled: the best pipeline for every multiset of devices, by a sweep from the back to the front.

As in the exact solver of chains, stages are put in front of what is built, and its step time and
fill are known. A pipeline has some of the micro-batches; other pipelines hold its layers too, so
each stage ends with a sum of gradients over all of them. Of each state (cut, option of the front
stage, devices used) the pipeline with the least step time is kept, and no other.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numba import njit

from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.formula import (
    Built,
    in_flight,
    put_in_front,
    stage_after_option_s,
    stage_bytes,
)
from heterps_envs.compiled import MINUS_ONE, ZERO, uncounted


class Beside(NamedTuple):
    """What stands beside a pipeline.

    Attributes:
        share: Micro-batches that the pipeline has.
        others: Other pipelines, on average.
        latency_s: Of the slowest link that sums of gradients take.
        s_per_byte: Of the same link.
        counted: Share of the seconds of sums that no pass hides.
        eager: Micro-batches that a stage may hold beyond the rule of 1F1B, where they fit.
    """

    share: int
    others: float
    latency_s: float
    s_per_byte: float
    counted: float
    eager: int


class Sweep(NamedTuple):
    """U parts between cuts that are allowed, O options, V multisets of devices.

    Attributes:
        edges: (U + 1,) first layers of the parts, and the number of layers.
        vectors, less, totals: Of `counts.Counts`.
        most_replicas: Of a stage.
        limit_s: Pipelines that take longer are left out.
        step_s: (U, O, V) written: the least step time from a cut on; inf where there is none.
        fill_s: (U, O, V) of that pipeline.
        stages: (U, O, V) of that pipeline, replicas counted.
        stop: (U, O, V) the cut where its first stage ends.
        replicas: (U, O, V) of its first stage.
        rest: (U, O, V) the multiset of the stages behind that one.
        behind: (U, O, V) the option behind a stage that ends at the cut; -1: none.
    """

    edges: Integers
    vectors: Integers
    less: Integers
    totals: Integers
    most_replicas: int
    limit_s: float
    step_s: Floats
    fill_s: Floats
    stages: Integers
    stop: Integers
    replicas: Integers
    rest: Integers
    behind: Integers


@uncounted
def _held(k: Any, beside: Any, start: int, stop: int, kind: int, replicas: int, behind: int) -> int:
    """Micro-batches that a replica may hold; 0 where it has no room for those that it must."""
    held = in_flight(beside.share, k.is_gpipe, replicas, behind)
    if stage_bytes(k, start, stop, kind, replicas, held) > k.memory_bytes[kind]:
        return 0
    if k.is_gpipe or behind == 0:
        return held
    eager = min(held + beside.eager, (beside.share + replicas - 1) // replicas)
    fits = stage_bytes(k, start, stop, kind, replicas, eager) <= k.memory_bytes[kind]
    return eager if fits else held


@uncounted
def _with_stage(
    k: Any, beside: Any, start: int, stop: int, kind: int, replicas: int, held: int, built: Any
) -> tuple[float, float]:
    """Step time and fill with layers `start .. stop - 1` in front of what is built."""
    share = (beside.share + replicas - 1) // replicas
    after = stage_after_option_s(k, start, stop, kind, replicas)
    if beside.others > 0:
        # A ring over all that hold the layers takes the place of that over the replicas.
        num_bytes = k.gradient_prefix_bytes[stop, kind] - k.gradient_prefix_bytes[start, kind]
        holders = beside.others + replicas
        ring_s = beside.latency_s + num_bytes / holders * beside.s_per_byte
        optimizer = k.optimizer_prefix_s[stop, kind] - k.optimizer_prefix_s[start, kind]
        after = max(after, optimizer + beside.counted * 2.0 * (holders - 1.0) * ring_s)
    found: tuple[float, float] = put_in_front(k, start, stop, kind, share, held, after, built)
    return found


@njit(cache=True)
def pipeline_steps_s(k: Any, beside: Any, stages: Any, shares: Any, step_s: Any) -> None:
    """Writes the closed form of one pipeline beside others; inf where it does not fit.

    Args:
        k: `KernelTables`.
        beside: `Beside`, whose share does not count.
        stages: (S, 3) rows of (layer behind the last, option, replicas), front first.
        shares: (N,) numbers of micro-batches.
        step_s: (N,) written to.
    """
    for index in range(len(shares)):
        own = Beside(
            shares[index], beside.others, beside.latency_s, beside.s_per_byte, beside.counted,
            beside.eager,
        )  # fmt: skip
        step_s[index] = _pipeline_step_s(k, own, stages)


@uncounted
def _pipeline_step_s(k: Any, beside: Any, stages: Any) -> float:
    step_s, fill_s, behind, kind = 0.0, 0.0, ZERO, MINUS_ONE
    for row in range(len(stages) - 1, -1, -1):
        stop, own, replicas = stages[row, 0], stages[row, 1], min(stages[row, 2], beside.share)
        start = stages[row - 1, 0] if row > 0 else 0
        held = _held(k, beside, start, stop, own, replicas, behind)
        if held == 0:
            return math.inf
        built = Built(kind, step_s, fill_s)
        step_s, fill_s = _with_stage(k, beside, start, stop, own, replicas, held, built)
        behind += replicas
        kind = own
    return step_s


@njit(cache=True)
def sweep(k: Any, beside: Any, s: Any) -> None:
    """Fills a `Sweep`.

    Args:
        k: `KernelTables`.
        beside: `Beside`.
        s: `Sweep`.
    """
    for first in range(len(s.edges) - 2, -1, -1):
        for vector in range(1, len(s.totals)):
            for kind in range(k.num_options):
                _best_front(k, beside, s, first, kind, vector)
        if first > 0:
            _link(k, s, first)


@uncounted
def _link(k: Any, s: Any, first: int) -> None:
    """For each option in front of a cut, the best one behind it."""
    num_bytes = k.output_bytes[s.edges[first] - 1]
    for vector in range(1, len(s.totals)):
        for kind in range(k.num_options):
            least = math.inf
            for other in range(k.num_options):
                step_s = s.step_s[first, other, vector]
                if step_s < math.inf:
                    transfer = num_bytes * k.inverse_bandwidth_s_per_byte[kind, other]
                    found = 2.0 * (k.latency_s[kind, other] + transfer) + step_s
                    if found < least:
                        least = found
                        s.behind[first, kind, vector] = other


@uncounted
def _best_front(k: Any, beside: Any, s: Any, first: int, kind: int, vector: int) -> None:
    """The best stage of an option that begins at a cut, with all devices of a vector used."""
    num_cuts, start, rest = len(s.edges) - 1, s.edges[first], vector
    at = (first, kind, vector)
    device_class, degree = k.class_of_option[kind], k.devices_of_option[kind]
    for replicas in range(1, s.most_replicas + 1):
        for _ in range(degree):
            rest = s.less[rest, device_class] if rest >= 0 else -1
        if rest < 0 or replicas > beside.share:
            return
        own_share = (beside.share + replicas - 1) // replicas
        is_last = s.totals[rest] == 0
        nearest, farthest = (num_cuts, num_cuts) if is_last else (first + 1, num_cuts - 1)
        for last in range(nearest, farthest + 1):
            stop = s.edges[last]
            compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
            if own_share * compute > s.limit_s:
                break
            built, behind = Built(MINUS_ONE, 0.0, 0.0), ZERO
            if not is_last:
                other = s.behind[last, kind, rest]
                if other < 0:
                    continue
                where = (last, other, rest)
                built = Built(other, s.step_s[where], s.fill_s[where])
                behind = s.stages[where]
            held = _held(k, beside, start, stop, kind, replicas, behind)
            if held == 0:
                if stage_bytes(k, start, stop, kind, replicas, 1) > k.memory_bytes[kind]:
                    break
                continue
            step_s, fill_s = _with_stage(k, beside, start, stop, kind, replicas, held, built)
            if step_s < s.step_s[at] and step_s <= s.limit_s:
                s.step_s[at], s.fill_s[at] = step_s, fill_s
                s.stop[at], s.replicas[at], s.rest[at] = last, replicas, rest
                s.stages[at] = behind + replicas
