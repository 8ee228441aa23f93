"""Compiled: the step time of a plan of blocks whose lanes stand side by side.

As in the closed form of chains, a stage begins when a micro-batch can be there, runs all of its
own, and waits for what is behind it; the slowest sets when all passes are over. Then sums that no
pass hides follow, and the optimizer. Between blocks the way of a micro-batch is the average over
their lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.closed_form.stage_formula import most_held, stage_work_s
from heterps_envs.compiled import ZERO, allocating, allocating_helper, uncounted_helper
from heterps_envs.lanes.arrays import Lanes, Parts
from heterps_envs.lanes.sums import sum_gradients
from heterps_envs.lanes.ways import pass_block, read_plan

# Where there is no room for a plan, instead of its step time.
NO_ROOM_S = -1.0


@allocating
def lanes_step_s(t: Any, plan: Any, sharded: Any, room: float) -> float:
    """Seconds of a step; `NO_ROOM_S` where a device has no room for what it must hold.

    Args:
        t: `LaneTables`.
        plan: See `arrays`.
        sharded: (L,) layers whose optimizer state is divided among all that hold them.
        room: Memory is so many times what the tables say.
    """
    p, w = _arrays(len(plan))
    num_blocks, num_edges = read_plan(plan, ZERO, p, w), len(sharded) + 1
    names, begins = np.empty(len(plan), np.int64), np.zeros(num_edges, np.int64)
    for block in range(num_blocks):
        pass_block(t, plan, p, w, block)
        sum_gradients(t, plan, p, w, block, sharded, names)
    if num_blocks == 1:
        _count_in_lanes(p, w)
    else:
        _count_alike(p, w.begin[w.block[num_blocks]], np.full(num_edges, -1), begins)
    return _step_s(t, p, w, num_blocks, room)


@allocating
def lane_rates_s(t: Any, block: Any, first: int, rates_s: Any) -> None:
    """Writes what the lanes of a block take for their first micro-batches, and for each one more.

    Args:
        t: `LaneTables`.
        block: As a plan.
        first: Its first layer.
        rates_s: (2, N) written.
    """
    p, w = _arrays(len(block))
    read_plan(block, first, p, w)
    pass_block(t, block, p, w, ZERO)
    for lane in range(rates_s.shape[1]):
        end = w.begin[lane + 1] - 1
        rates_s[0, lane] = p.in_s[end] + p.forward_s[end] + p.out_s[end] + p.backward_s[end]
        rates_s[1, lane] = 0.0
        for i in range(w.begin[lane], end + 1):
            each_s = (p.forward_s[i] + p.backward_s[i]) / p.replicas[i]
            rates_s[1, lane] = max(rates_s[1, lane], each_s)


@allocating_helper
def _arrays(num_numbers: int) -> tuple[Any, Any]:
    """Room for a plan of so many numbers; a part takes four of them or more."""
    size = num_numbers // 4 + 2
    n, x = np.empty((13, size), np.int64), np.empty((17, size))
    p = Parts(
        n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9],
        x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9], x[10],
    )  # fmt: skip
    return p, Lanes(n[10], n[11], x[11], x[12], x[13], n[12], x[14], x[15], x[16])


@uncounted_helper
def _count_in_lanes(p: Any, w: Any) -> None:
    """Replicas of each part, and behind it, where each lane is a pipeline."""
    for lane in range(w.block[1]):
        behind = 0
        for i in range(w.begin[lane + 1] - 1, w.begin[lane] - 1, -1):
            p.alike[i], p.behind[i] = p.replicas[i], behind
            behind += p.replicas[i]


@uncounted_helper
def _count_alike(p: Any, num_parts: int, heads: Any, begins: Any) -> None:
    """Replicas of all parts of the same layers, and of all that begin behind them.

    Args:
        p: `Parts`.
        num_parts: Of all lanes.
        heads: (L + 1,) of -1: for each layer a part that begins there.
        begins: (L + 1,) of 0: replicas that begin at a layer, or behind it.
    """
    for i in range(num_parts):
        other = heads[p.first[i]]
        while other >= 0 and p.stop[other] != p.stop[i]:
            other = p.next_first[other]
        if other < 0:
            other, p.next_first[i], p.alike[i] = i, heads[p.first[i]], 0
            heads[p.first[i]] = i
        p.alike[other] += p.replicas[i]
        p.like[i] = other
        begins[p.first[i]] += p.replicas[i]
    for layer in range(len(begins) - 2, -1, -1):
        begins[layer] += begins[layer + 1]
    for i in range(num_parts):
        p.alike[i], p.behind[i] = p.alike[p.like[i]], begins[p.stop[i]]


@uncounted_helper
def _step_s(t: Any, p: Any, w: Any, num_blocks: int, room: float) -> float:
    passes_s, messages_s, passed_s = 0.0, 0.0, 0.0
    for block in range(num_blocks):
        passes_s += w.forward_s[block] + w.backward_s[block]
        messages_s += w.message_s[block]
    rest_s, in_s, out_s = passes_s + 2 * messages_s, 0.0, 0.0
    for block in range(num_blocks):
        message_s = w.message_s[block]
        rest_s -= w.forward_s[block] + w.backward_s[block] + 2 * message_s
        for lane in range(w.block[block], w.block[block + 1]):
            entry_s = w.entry_s[lane]
            w.out_s[lane] = out_s + entry_s
            ends_s = _passed_s(t, p, w, lane, in_s + entry_s, rest_s, room)
            if ends_s < 0.0:
                return NO_ROOM_S
            passed_s = max(passed_s, ends_s)
        in_s = in_s + w.forward_s[block] + message_s
        out_s = out_s + w.backward_s[block] + message_s
    return _summed_s(p, w, w.block[num_blocks], passed_s)


@uncounted_helper
def _passed_s(
    t: Any, p: Any, w: Any, lane: int, in_s: float, behind_s: float, room: float
) -> float:
    """When the passes of a lane are over."""
    passed_s = 0.0
    for i in range(w.begin[lane], w.begin[lane + 1]):
        held = _held(t, p, i, room)
        if held == 0:
            return NO_ROOM_S
        round_s = behind_s + p.behind_s[i]
        work_s = stage_work_s(p.forward_s[i], p.backward_s[i], round_s, p.share[i], held)
        ends_s = in_s + p.in_s[i] + max(work_s, p.link_s[i]) + w.out_s[lane] + p.out_s[i]
        passed_s = max(passed_s, ends_s)
    return passed_s


@uncounted_helper
def _held(t: Any, p: Any, i: int, room: float) -> int:
    """Micro-batches that a replica may hold; 0 where it has no room for those that it must.

    See `heterps_envs.schedule.in_flight`.
    """
    column, share, alike = p.column[i], p.share[i], p.alike[i]
    kept_bytes = t.kept_bytes[column, p.stop[i]] - t.kept_bytes[column, p.first[i]]
    room_bytes = room * t.room_bytes[column] - (p.state_bytes[i] - p.spared_bytes[i])
    held: int = share if t.is_gpipe else min(share, (2 * alike + p.behind[i] - 1) // alike)
    if held * kept_bytes > room_bytes:
        return 0
    return max(held, most_held(share, room_bytes, kept_bytes)) if t.is_open else held


@uncounted_helper
def _summed_s(p: Any, w: Any, num_lanes: int, passed_s: float) -> float:
    """When sums and optimizer steps are over."""
    longest_s = passed_s
    for lane in range(num_lanes):
        for i in range(w.begin[lane], w.begin[lane + 1]):
            # What its own last backward pass does not hide, and at least the last layer's.
            last_s = p.summed_s[i] / (p.stop[i] - p.first[i])
            after_s = max(p.summed_s[i] - p.backward_s[i], last_s)
            after_s += p.optimizer_s[i] - p.spared_s[i]
            longest_s = max(longest_s, passed_s - w.out_s[lane] - p.out_s[i] + after_s)
    return longest_s
