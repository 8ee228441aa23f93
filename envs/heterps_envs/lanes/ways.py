"""Compiled: the ways of a micro-batch through lanes, on their own devices and links."""

from __future__ import annotations

from typing import Any

from heterps_envs.compiled import uncounted_helper


@uncounted_helper
def read_plan(plan: Any, first_layer: int, p: Any, w: Any) -> int:
    """Notes what the plan says of parts and lanes; the number of blocks.

    Args:
        plan: Or some of its blocks.
        first_layer: Of the first block.
        p: `Parts`.
        w: `Lanes`.
    """
    at, lane, part, block, first_of_block = 0, 0, 0, 0, first_layer
    while at < len(plan):
        num_lanes, total, begin = plan[at], 0, lane
        at, stop = at + 1, 0
        w.block[block] = lane
        for _ in range(num_lanes):
            share, num_parts, first = plan[at], plan[at + 1], first_of_block
            at += 2
            w.begin[lane], w.weight[lane] = part, share
            total += share
            for _ in range(num_parts):
                stop, replicas = plan[at], plan[at + 2]
                p.first[part], p.stop[part], p.column[part] = first, stop, plan[at + 1]
                p.replicas[part], p.devices[part] = replicas, at + 3
                p.share[part] = (share + replicas - 1) // replicas
                at, first, part = at + 3 + replicas, stop, part + 1
            lane += 1
        for own in range(begin, lane):
            w.weight[own] = w.weight[own] / total
        first_of_block, block = stop, block + 1
    w.begin[lane], w.block[block] = part, lane
    return block


@uncounted_helper
def link_of(links: Any, a: int, b: int) -> tuple[float, float]:
    """Latency and seconds per byte from one device to another."""
    first, second = links.node_of[a], links.node_of[b]
    if first == second and a > b and links.is_directed[first]:
        return links.back_latency_s[first], 1.0 / links.back_bandwidth[first]
    bandwidth = links.bandwidth_bytes_per_s[first, second]
    return links.latency_s[first, second], 1.0 / bandwidth


@uncounted_helper
def _message(t: Any, plan: Any, p: Any, front: int, behind: int) -> tuple[float, float]:
    """The same between two parts, on average over their replicas."""
    latency, per_byte = 0.0, 0.0
    for a in range(p.devices[front], p.devices[front] + p.replicas[front]):
        for b in range(p.devices[behind], p.devices[behind] + p.replicas[behind]):
            own = link_of(t.links, plan[a], plan[b])
            latency, per_byte = latency + own[0], per_byte + own[1]
    count = p.replicas[front] * p.replicas[behind]
    return latency / count, per_byte / count


@uncounted_helper
def pass_block(t: Any, plan: Any, p: Any, w: Any, block: int) -> None:
    """What the parts of a block take, the ways through it, and to it from the block in front."""
    forward_s, backward_s, message_s = 0.0, 0.0, 0.0
    for lane in range(w.block[block], w.block[block + 1]):
        _pass_lane(t, plan, p, w.begin[lane], w.begin[lane + 1])
        end = w.begin[lane + 1] - 1
        forward_s += w.weight[lane] * (p.in_s[end] + p.forward_s[end])
        backward_s += w.weight[lane] * (p.out_s[end] + p.backward_s[end])
        w.entry_s[lane] = 0.0
        if block > 0:
            _enter(t, plan, p, w, block, lane)
        message_s += w.weight[lane] * w.entry_s[lane]
    w.forward_s[block], w.backward_s[block] = forward_s, backward_s
    w.message_s[block] = message_s


@uncounted_helper
def _enter(t: Any, plan: Any, p: Any, w: Any, block: int, lane: int) -> None:
    entry_s = 0.0
    for front in range(w.block[block - 1], w.block[block]):
        end = w.begin[front + 1] - 1
        latency, per_byte = _message(t, plan, p, end, w.begin[lane])
        message_s = latency + t.output_bytes[p.stop[end] - 1] * per_byte
        entry_s += w.weight[front] * message_s
    w.entry_s[lane] = entry_s


@uncounted_helper
def _pass_lane(t: Any, plan: Any, p: Any, begin: int, stop_part: int) -> None:
    in_s, out_s = 0.0, 0.0
    for i in range(begin, stop_part):
        column, first, stop = p.column[i], p.first[i], p.stop[i]
        message_s, p.link_s[i] = 0.0, 0.0
        if i + 1 < stop_part:
            latency, per_byte = _message(t, plan, p, i, i + 1)
            message_s = latency + t.output_bytes[stop - 1] * per_byte
            p.link_s[i] = 2 * latency + (p.share[i] + 1) * t.output_bytes[stop - 1] * per_byte
        p.forward_s[i] = t.forward_s[column, stop] - t.forward_s[column, first]
        p.backward_s[i] = t.backward_s[column, stop] - t.backward_s[column, first]
        p.optimizer_s[i] = t.optimizer_s[column, stop] - t.optimizer_s[column, first]
        state = t.state_bytes[column, stop] - t.state_bytes[column, first]
        p.state_bytes[i] = state + t.sharded_bytes[column, stop] - t.sharded_bytes[column, first]
        p.in_s[i], p.out_s[i] = in_s, out_s
        in_s = in_s + p.forward_s[i] + message_s
        out_s = out_s + p.backward_s[i] + message_s
    for i in range(begin, stop_part):
        p.behind_s[i] = in_s - p.in_s[i] - p.forward_s[i] + out_s - p.out_s[i] - p.backward_s[i]
