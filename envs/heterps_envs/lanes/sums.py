"""Compiled: the sums of gradients of lanes that stand side by side, on their own devices and links.

Layers that the same devices hold are summed together, by a ring in the order of the cluster.
"""

from __future__ import annotations

from typing import Any

from heterps_envs.compiled import uncounted_helper
from heterps_envs.lanes.ways import link_of


@uncounted_helper
def sum_gradients(t: Any, plan: Any, p: Any, w: Any, block: int, sharded: Any, names: Any) -> None:
    """Writes what sums take of the parts of a block, and what sharing of state spares them.

    Args:
        t: `LaneTables`.
        plan: The plan.
        p: `Parts`.
        w: `Lanes`.
        block: Which one.
        sharded: (L,) layers whose optimizer state is divided among all that hold them.
        names: Room for the devices that hold a layer.
    """
    begin, end = w.block[block], w.block[block + 1]
    for i in range(w.begin[begin], w.begin[end]):
        p.summed_s[i], p.spared_bytes[i], p.spared_s[i] = 0.0, 0.0, 0.0
    for lane in range(begin, end):
        w.at[lane] = w.begin[lane]
    first, last = p.first[w.begin[begin]], p.stop[w.begin[begin + 1] - 1]
    while first < last:
        stop, count = last, 0
        for lane in range(begin, end):
            i = w.at[lane]
            stop = min(stop, p.stop[i])
            for at in range(p.devices[i], p.devices[i] + p.replicas[i]):
                _put_in_order(names, count, plan[at])
                count += 1
        if count > 1:
            _sum_together(t, p, w.at[begin:end], first, stop, names[:count], sharded[first])
        for lane in range(begin, end):
            if p.stop[w.at[lane]] == stop:
                w.at[lane] += 1
        first = stop


@uncounted_helper
def _put_in_order(names: Any, count: int, name: int) -> None:
    """One more among those that are in order."""
    at = count
    while at > 0 and names[at - 1] > name:
        names[at] = names[at - 1]
        at -= 1
    names[at] = name


@uncounted_helper
def _sum_together(
    t: Any, p: Any, holders: Any, first: int, stop: int, names: Any, is_shared: bool
) -> None:
    num_bytes = 0.0
    for i in holders:
        column = p.column[i]
        own = t.gradient_bytes[column, stop] - t.gradient_bytes[column, first]
        num_bytes = max(num_bytes, own)
    count = len(names)
    latency_s, s_per_byte = _slowest_link(t.links, names)
    ring_s = 2 * (count - 1) * (latency_s + num_bytes / count * s_per_byte)
    for i in holders:
        p.summed_s[i] += ring_s
        if is_shared:
            spared, column = 1 - 1 / count, p.column[i]
            own = t.sharded_bytes[column, stop] - t.sharded_bytes[column, first]
            p.spared_bytes[i] += spared * own
            p.spared_s[i] += spared * (t.optimizer_s[column, stop] - t.optimizer_s[column, first])


@uncounted_helper
def _slowest_link(links: Any, names: Any) -> tuple[float, float]:
    """The largest latency and the most seconds per byte on the way around."""
    latency_s, s_per_byte = 0.0, 0.0
    for index in range(len(names)):
        own = link_of(links, names[index - 1], names[index])
        latency_s, s_per_byte = max(latency_s, own[0]), max(s_per_byte, own[1])
    return latency_s, s_per_byte
