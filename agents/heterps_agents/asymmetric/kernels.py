"""Compiled: the best pipeline for every multiset of devices, by a sweep from the back to the front.

As in the exact solver of chains, stages are put in front of what is built, and its step time and
fill are known. A pipeline has some of the micro-batches; other pipelines hold its layers too, so
each stage ends with a sum of gradients over all of them. Of each state (cut, option of the front
stage, devices used) the pipeline with the least step time is kept, and no other.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.formula import Built
from heterps_envs.compiled import MINUS_ONE, ZERO, checked, uncounted_helper
from heterps_envs.lanes.beside import held_by, link_behind, put_stage_in_front, stage_of

# What is longer by rounding alone may be shorter.
ROUNDING = 1 - 1e-9


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
        with_device, rests: (V,) written over: vectors that have devices for a stage, what is left.
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
    with_device: Integers
    rests: Integers


@checked
def sweep(k: Any, beside: Any, s: Any) -> None:
    """Fills a `Sweep`.

    Args:
        k: `KernelTables`.
        beside: `Beside`.
        s: `Sweep`.
    """
    for first in range(len(s.edges) - 2, -1, -1):
        for kind in range(k.num_options):
            _best_fronts(k, beside, s, first, kind)
        if first > 0:
            _link(k, s, first)


@uncounted_helper
def _link(k: Any, s: Any, first: int) -> None:
    """For each option in front of a cut, the best one behind it."""
    num_bytes = k.output_bytes[s.edges[first] - 1]
    for kind in range(k.num_options):
        for vector in range(1, len(s.totals)):
            least = math.inf
            for other in range(k.num_options):
                step_s = s.step_s[first, other, vector]
                if step_s < math.inf:
                    transfer = num_bytes * k.inverse_bandwidth_s_per_byte[kind, other]
                    found = 2.0 * (k.latency_s[kind, other] + transfer) + step_s
                    if found < least:
                        least = found
                        s.behind[first, kind, vector] = other


@uncounted_helper
def _best_fronts(k: Any, beside: Any, s: Any, first: int, kind: int) -> None:
    """The best stages of an option that begin at a cut, for each vector, all of it used."""
    start, count = s.edges[first], len(s.totals) - 1
    for index in range(count):
        s.with_device[index] = s.rests[index] = index + 1
    for replicas in range(1, min(s.most_replicas, beside.share) + 1):
        count = _take(k, s, kind, count)
        for last in range(first + 1, len(s.edges)):
            # Found once for all vectors: large tuples are copied for each call that has them.
            stage = stage_of(k, beside, start, s.edges[last], kind, replicas)
            if stage.share * stage.compute_s > s.limit_s:
                break
            if stage.state_bytes + stage.kept_bytes > stage.room_bytes:
                break
            if last + 1 < len(s.edges):
                _put_in_front(k, beside, s, first, last, stage, count)
            else:
                _put_alone(k, beside, s, first, stage, count)


@uncounted_helper
def _take(k: Any, s: Any, kind: int, count: int) -> int:
    """One more replica from what is left of each vector; how many vectors have one."""
    device_class, degree, found = k.class_of_option[kind], k.devices_of_option[kind], 0
    for index in range(count):
        rest = s.rests[index]
        for _ in range(degree):
            rest = s.less[rest, device_class] if rest >= 0 else -1
        if rest >= 0:
            s.with_device[found], s.rests[found] = s.with_device[index], rest
            found += 1
    return found


@uncounted_helper
def _put_alone(k: Any, beside: Any, s: Any, first: int, stage: Any, count: int) -> None:
    """A stage up to the last layer, for the vector that has its devices and no others."""
    held = held_by(stage, beside, k.is_gpipe, ZERO)
    for index in range(count):
        if s.rests[index] == 0 and held > 0:
            built = Built(MINUS_ONE, 0.0, 0.0)
            step_s, fill_s = put_stage_in_front(stage, held, 0.0, 0.0, built)
            at = first, stage.kind, s.with_device[index]
            if step_s < s.step_s[at] and step_s <= s.limit_s:
                s.step_s[at], s.fill_s[at], s.stages[at] = step_s, fill_s, stage.replicas
                s.stop[at], s.replicas[at], s.rest[at] = len(s.edges) - 1, stage.replicas, 0


@uncounted_helper
def _put_in_front(
    k: Any, beside: Any, s: Any, first: int, last: int, stage: Any, count: int
) -> None:
    """A stage in front of the best pipeline for what is left of each vector, if that is better."""
    own_s, kind = stage.share * stage.compute_s, stage.kind
    for index in range(count):
        rest, at = s.rests[index], (first, kind, s.with_device[index])
        other, best_s = s.behind[last, kind, rest], s.step_s[at]
        if other < 0 or own_s * ROUNDING >= best_s:
            continue
        where = last, other, rest
        behind_s, behind = s.step_s[where], s.stages[where]
        if (stage.compute_s + behind_s) * ROUNDING >= best_s:
            continue
        held = held_by(stage, beside, k.is_gpipe, behind)
        if held == 0:
            continue
        latency, transfer = link_behind(k, stage.stop, kind, other)
        built = Built(other, behind_s, s.fill_s[where])
        step_s, fill_s = put_stage_in_front(stage, held, latency, transfer, built)
        if step_s < best_s and step_s <= s.limit_s:
            s.step_s[at], s.fill_s[at], s.stages[at] = step_s, fill_s, behind + stage.replicas
            s.stop[at], s.replicas[at], s.rest[at] = last, stage.replicas, rest
