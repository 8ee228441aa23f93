"""Which sets of groups may one accelerator hold? Every set is a path through a small graph.

Groups are decided one after another: in or out. Of the past, only the nets matter that still have
undecided members, and of such a net only whether its decided members are all out, all in, or mixed.
Operator graphs of neural networks are long and narrow: in a good order few nets are open at once,
so few states can occur, and the sets of groups with their loads become the paths of a graph of some
thousand states.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.splits.groups import GroupGraph
from heterps_envs.arrays import Floats, Integers

MAX_STATES = 200_000
ALL_OUT, ALL_IN, MIXED = 0, 1, 2
ORDER_STARTS = 8
# Far more states than can be enumerated, although few of them may occur.
MAX_ORDER_COST = 1e9
# Shares of all net seconds that may be ignored, tried in turn until the states are few enough.
IGNORED_SHARES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


class BorderStates(NamedTuple):
    """The graph of states: its layer t holds what can be known before group `order[t]`.

    Attributes:
        order: Groups in the order in which they are decided.
        first: First state of each layer, and the end; the last layer holds one state.
        next_state: (S, 2) the state after leaving the group out, and after taking it in.
        in_s: (S, 2) seconds of nets that this decision makes cross the border of the groups in.
        out_s: (S, 2) the same for the groups out. Differs only for nets that also have members
            elsewhere, on a third device.
        ignored_s: Seconds of nets that were left out to keep the states few. Loads are too low by
            at most these, so that bounds stay valid.
    """

    order: Integers
    first: Integers
    next_state: Integers
    in_s: Floats
    out_s: Floats
    ignored_s: float


def border_states(graph: GroupGraph, max_states: int = MAX_STATES) -> BorderStates:
    """The states of an entire graph; the cheapest nets are ignored where there would be too many.

    Args:
        graph: The groups.
        max_states: How many there may be.
    """
    by_seconds = np.sort(graph.net_s)
    spent = np.cumsum(by_seconds)
    for share in IGNORED_SHARES:
        drop = int(np.searchsorted(spent, share * graph.net_s.sum(), side="right")) if share else 0
        kept = graph.net_s > (by_seconds[drop - 1] if drop else 0.0)
        order = narrow_order(graph, kept)
        states = None if order is None else states_along(graph, order, kept, max_states)
        if states is not None:
            return states
    raise AssertionError("without nets there is one state for each group")


def narrow_order(graph: GroupGraph, kept: NDArray[np.bool_]) -> list[int] | None:
    """An order of the groups with few open nets: the best of some greedy ones, None where wide."""
    degree = np.diff(graph.net_start)
    starts = np.argsort(degree, kind="stable")[:ORDER_STARTS]
    orders = [_greedy_order(graph, kept, int(start)) for start in starts]
    cost, order = min(orders, key=lambda found: found[0])
    return order if cost < math.inf else None


def _greedy_order(
    graph: GroupGraph, kept: NDArray[np.bool_], start: int
) -> tuple[float, list[int]]:
    """How many states an order would have if all of them could occur, and the order."""
    nets_of = [
        [int(net) for net in graph.nets[first:stop] if kept[net]]
        for first, stop in zip(graph.net_start, graph.net_start[1:], strict=False)
    ]
    left = np.diff(graph.member_start).tolist()
    waiting, done, order = {start}, set[int](), list[int]()
    is_open: set[int] = set()
    cost, position = 0.0, 0
    while len(order) < graph.num_groups:
        while not waiting:
            waiting |= {position} - done
            position += 1

        def opened(group: int) -> tuple[int, int, int]:
            mine = nets_of[group]
            known = sum(net in is_open for net in mine)
            closed = sum(net in is_open and left[net] == 1 for net in mine)
            return len(mine) - known - closed, -known, group

        group = min(waiting, key=opened)
        waiting.discard(group)
        done.add(group)
        order.append(group)
        for net in nets_of[group]:
            left[net] -= 1
            (is_open.add if left[net] else is_open.discard)(net)
            waiting |= {int(other) for other in graph.net(net)} - done
        cost += 3.0 ** len(is_open)
        if cost > MAX_ORDER_COST:
            return math.inf, order
    return cost, order


def states_along(
    graph: GroupGraph, order: list[int], kept: NDArray[np.bool_], max_states: int
) -> BorderStates | None:
    """The states of some groups, decided in a given order.

    Args:
        graph: The groups, among them those of the order; the others stay on other devices.
        order: Groups to decide.
        kept: (R,) nets that count.
        max_states: None is returned where there are more.
    """
    inside = np.zeros(graph.num_groups, np.bool_)
    inside[order] = True
    left = [int(inside[graph.net(net)].sum()) for net in range(graph.num_nets)]
    has_others = [
        count < size for count, size in zip(left, np.diff(graph.member_start), strict=True)
    ]
    net_s = graph.net_s.tolist()
    open_nets: list[int] = []
    layer: dict[tuple[int, ...], int] = {(): 0}
    first, next_state = [0], list[tuple[int, int]]()
    in_s, out_s = list[list[float]](), list[list[float]]()
    for group in order:
        begin, end = graph.net_start[group], graph.net_start[group + 1]
        mine = [net for net in graph.nets[begin:end].tolist() if kept[net]]
        slot = {net: index for index, net in enumerate(open_nets)}
        for net in mine:
            left[net] -= 1
        stays = [net for net in [*open_nets, *(n for n in mine if n not in slot)] if left[net]]
        following: dict[tuple[int, ...], int] = {}
        offset = first[-1] + len(layer)
        if offset + 2 * len(layer) > max_states:
            return None
        for state in layer:
            targets, paid_in, paid_out = [], [0.0, 0.0], [0.0, 0.0]
            for choice in (ALL_OUT, ALL_IN):
                after = dict(zip(open_nets, state, strict=True))
                for net in mine:
                    before = after.get(net)
                    is_news = before is None or before not in (choice, MIXED)
                    if is_news and has_others[net]:
                        (paid_in if choice == ALL_IN else paid_out)[choice] += net_s[net]
                    elif is_news and before is not None:
                        paid_in[choice] += net_s[net]
                        paid_out[choice] += net_s[net]
                    after[net] = choice if before is None or before == choice else MIXED
                targets.append(
                    offset + following.setdefault(tuple(after[n] for n in stays), len(following))
                )
            next_state.append((targets[0], targets[1]))
            in_s.append(paid_in)
            out_s.append(paid_out)
        first.append(offset)
        layer, open_nets = following, stays
    return BorderStates(
        order=np.array(order, dtype=np.int64),
        first=np.array([*first, first[-1] + 1], dtype=np.int64),
        next_state=np.array(next_state, dtype=np.int64),
        in_s=np.array(in_s),
        out_s=np.array(out_s),
        ignored_s=float(graph.net_s[~kept].sum()),
    )
