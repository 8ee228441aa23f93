"""Stages that may come next, compiled: the longest of so many replicas, and one of less fill.

How far a stage may grow: `heterps_envs.environments.stage.growth`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.compiled import MINUS_ONE, inlined, uncounted_helper
from heterps_envs.environments.stage.features import Found, observe_candidate
from heterps_envs.environments.stage.growth import (
    Growing,
    behind_with_stage_s,
    best_front_link,
    bytes_in_front,
    largest_share,
    least_fill_stage,
    least_price_in_front,
    list_fronts,
    longest_stage,
    tightest_layer,
)
from heterps_envs.environments.stage.state import NUM_RUNGS


class Wanted(NamedTuple):
    """A stage, and when it is worth it: if it reaches further, or the step time is shorter.

    Attributes:
        kind: Its class.
        rung: Of its number of replicas.
        replicas: Its replicas, at most.
        below: Those of the rung before.
        reached: First layer of the stages of fewer replicas.
        shortest_s: Limit of the step time from it on.
    """

    kind: int
    rung: int
    replicas: int
    below: int
    reached: int
    shortest_s: float


@uncounted_helper
def _reach(
    p: Any, rows: Any, row: int, kind: int, replicas: int, allowance_s: float, scratch: Any
) -> int:
    """First layer of the longest stage of so many replicas; -1: there is none.

    Writes what `heterps_envs.environments.stage.growth.longest_stage` does.
    """
    z, neighbour = rows.problem[row], rows.front_class[row]
    micro_batches = p.num_micro_batches[z]
    held = in_flight(micro_batches, p.is_gpipe[z], replicas, rows.replicas_behind[row])
    share, through_s = largest_share(micro_batches, replicas), 0.0
    if neighbour >= 0:
        transfer = _transfer_s(p, z, rows.position[row], kind, neighbour)
        if (share - 1) * transfer > allowance_s:
            return -1
        through_s = 2.0 * (p.latency_s[z, kind, neighbour] + transfer)
    stage = Growing(kind, replicas, held, share)
    return longest_stage(p, rows, row, stage, through_s, allowance_s, scratch)


@inlined
def _transfer_s(p: Any, z: int, stop: int, kind: int, neighbour: int) -> float:
    """Bytes over bandwidth of a message over the cut behind a stage."""
    return p.output_bytes[z, stop - 1] * p.inverse_bandwidth_s_per_byte[z, kind, neighbour]  # type: ignore[no-any-return]


@uncounted_helper
def _fewest(
    p: Any, rows: Any, row: int, wanted: Any, start: int, allowance_s: float, scratch: Any
) -> int:
    """The least number of replicas, above those of the rung before, that reaches as far."""
    low, high = wanted.below, wanted.replicas
    while high - low > 1:
        middle = (low + high) >> 1
        if _reach(p, rows, row, wanted.kind, middle, allowance_s, scratch) == start:
            high = middle
        else:
            low = middle
    return high  # type: ignore[no-any-return]


@uncounted_helper
def observe_rung(
    p: Any, rows: Any, row: int, view: Any, line: int, wanted: Any, left: Any, scratch: Any
) -> tuple[int, float]:
    """Writes the wanted stage, if it is worth it.

    Returns its first layer, or -1, and the step time from it on.
    """
    fronts, front = scratch
    kind, rung, replicas, below, reached, shortest_s = wanted
    z, stop, neighbour = rows.problem[row], rows.position[row], rows.front_class[row]
    start = _reach(p, rows, row, kind, replicas, left.allowance_s, scratch)
    if start < 0:
        return -1, 0.0
    if start < reached and replicas - below > 1 and rung < NUM_RUNGS - 1:
        replicas = _fewest(p, rows, row, wanted, start, left.allowance_s, scratch)
        _reach(p, rows, row, kind, replicas, left.allowance_s, scratch)
    micro_batches = p.num_micro_batches[z]
    held = in_flight(micro_batches, p.is_gpipe[z], replicas, rows.replicas_behind[row])
    share = largest_share(micro_batches, replicas)
    link, through_s = 0.0, 0.0
    if neighbour >= 0:
        transfer = _transfer_s(p, z, stop, kind, neighbour)
        link = (share - 1) * transfer / left.allowance_s
        through_s = 2.0 * (p.latency_s[z, kind, neighbour] + transfer)
    behind_s = behind_with_stage_s(p, rows, row, kind, replicas, held, start)
    if start >= reached and behind_s >= shortest_s:
        return -1, 0.0
    tightest, next_behind = 0.0, rows.replicas_behind[row] + replicas
    taken = (
        replicas
        * p.devices_of_option[z, kind]
        * p.class_memory_bytes[z, p.class_of_option[z, kind]]
    )
    bytes_left = left.free_bytes - taken
    dollars_left = left.dollars - replicas * p.price_usd_per_hour[z, kind]
    if start > 0:
        tightest = tightest_layer(p, z, 0, start, fronts, 0.0)
        if tightest > 1.0 or bytes_in_front(p, z, start, next_behind) > bytes_left:
            return -1, 0.0
        if least_price_in_front(p, rows, row, start, fronts) > dollars_left:
            return -1, 0.0
    actions = rows.used.shape[1] * NUM_RUNGS
    shorter = MINUS_ONE
    if view.allowed.shape[1] > actions:
        if start == 0:
            list_fronts(p, rows, row, kind, replicas, fronts)
        shorter = least_fill_stage(p, rows, row, kind, through_s, start, fronts)
    action = kind * NUM_RUNGS + rung
    for cut in range(2 if shorter >= 0 else 1):
        first, reached_s = start, behind_s
        if cut == 1:
            first = shorter
            tightest = tightest_layer(p, z, start, first, fronts, tightest)
            if tightest > 1.0 or bytes_in_front(p, z, first, next_behind) > bytes_left:
                break
            if least_price_in_front(p, rows, row, first, fronts) > dollars_left:
                break
            reached_s = behind_with_stage_s(p, rows, row, kind, replicas, held, first)
            fill = rows.fill_s[row] + through_s
            fill += p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, first, kind]
            front[0], front[1], front[2] = best_front_link(
                p, z, first, kind, fronts, rows.target_s[row], fill,
                rows.fill_limit_s[row] - fill - p.fastest_prefix_s[z, first],
            )  # fmt: skip
        found = Found(
            cut * actions + action, replicas, first, held, reached_s, link, through_s, tightest
        )
        observe_candidate(p, rows, row, view, line, found, left, front)
    return start, behind_s
