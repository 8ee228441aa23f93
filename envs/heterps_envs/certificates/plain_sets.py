"""Can a device hold a set of more value than allowed, within a load? Plain NumPy, no solver's code.

What a bound by prices rests on (`heterps_envs.certificates.split`). Groups are decided one after
another, in or out. A net costs its seconds once, when its members turn out to be on both sides; so
of the past only the open nets matter: all members out so far, all in, or both. Sets are paths
through these states. Paths of one state that hold less and weigh more than another are dropped, and
so are those that cannot reach the value asked for, by weak duality: for any price m of a second,
what the rest can add is at most max(value - m load) + m (limit - load so far).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers

OUT, IN, BOTH = 0, 1, 2
# Loads and values are sums of rounded numbers.
ROUNDING = 1e-12
MAX_STATES, MAX_LABELS = 300_000, 3_000_000
# Paths of one state whose loads share a cell may count as one, of the better load and value.
CELLS = (2_000, 16_000, 128_000)
PRICE_STEPS = 48
GOLDEN = 0.5 * (5**0.5 - 1)


class Net(NamedTuple):
    """What one group sends to others.

    Attributes:
        seconds: Paid once by a device that holds some members, but not all.
        members: Groups, the sender among them.
        is_never_whole: No device has the memory for all members.
    """

    seconds: float
    members: frozenset[int]
    is_never_whole: bool = False


class Layer(NamedTuple):
    """One group is decided.

    Attributes:
        group: Which.
        target: (S, 2) state afterwards, of the next layer, when it stays out and when it comes in.
        paid_s: (S, 2) seconds of nets that this makes cross the border.
    """

    group: int
    target: Integers
    paid_s: Floats


def layers_of(nets: Sequence[Net], order: Sequence[int]) -> list[Layer] | None:
    """The states of all sets, None where they are more than `MAX_STATES`.

    Args:
        nets: What costs seconds at the border.
        order: Every group once; any order is right, one with few open nets has few states.
    """
    nets_of: list[list[int]] = [[] for _ in order]
    for index, net in enumerate(nets):
        for group in net.members:
            nets_of[group].append(index)
    left = [len(net.members) for net in nets]
    states: dict[tuple[int, ...], int] = {(): 0}
    open_nets: list[int] = []
    layers, count = list[Layer](), 0
    for group in order:
        for index in nets_of[group]:
            left[index] -= 1
        known = set(open_nets)
        stays = [n for n in [*open_nets, *(n for n in nets_of[group] if n not in known)] if left[n]]
        following: dict[tuple[int, ...], int] = {}
        target = np.empty((len(states), 2), np.int64)
        paid_s = np.zeros((len(states), 2))
        for state, row in states.items():
            for choice in (OUT, IN):
                now = dict(zip(open_nets, state, strict=True))
                for index in nets_of[group]:
                    before = now.get(index)
                    now[index], is_paid = _joined(before, choice, nets[index].is_never_whole)
                    paid_s[row, choice] += nets[index].seconds * is_paid
                key = tuple(now[n] for n in stays)
                target[row, choice] = following.setdefault(key, len(following))
        layers.append(Layer(group, target, paid_s))
        states, open_nets = following, stays
        count += len(states)
        if count > MAX_STATES:
            return None
    return layers


def _joined(before: int | None, choice: int, is_never_whole: bool) -> tuple[int, bool]:
    """Where the decided members of a net are, one more decided; whether it now crosses."""
    if before is None:
        return (BOTH, True) if is_never_whole and choice == IN else (choice, False)
    if before in (choice, BOTH):
        return before, False
    return BOTH, True


def can_hold_more(
    layers: Sequence[Layer],
    value: Sequence[float],
    seconds: Sequence[float],
    limit_s: float,
    worth: float,
) -> bool | None:
    """Whether some set of a load of at most `limit_s` may be worth more than `worth`.

    Args:
        layers: Of the device's nets; of none for a CPU.
        value: (G,) of the groups; may be negative.
        seconds: (G,) load of each group on the device; inf: it cannot be there.
        limit_s: Seconds.
        worth: What no set may exceed.

    Returns:
        False is a proof. True: such a set exists, up to cells of the load. None: too many paths.
    """
    price, rest = _best_price(layers, value, seconds, limit_s)
    if rest[0][0] + price * limit_s <= worth:
        return False
    found: bool | None = None
    for cells in CELLS:
        found = _search(layers, value, seconds, (limit_s, worth), (price, rest), cells)
        if found is not True:
            return found
    return found


def _best_price(
    layers: Sequence[Layer], value: Sequence[float], seconds: Sequence[float], limit_s: float
) -> tuple[float, list[Floats]]:
    """The price of a second with the least bound: golden section on a convex function."""

    def bound(price: float) -> float:
        return float(_rest(layers, value, seconds, price)[0][0]) + price * limit_s

    low, high = 0.0, sum(max(v, 0.0) for v in value) / limit_s
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = bound(left), bound(right)
    for _ in range(PRICE_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = bound(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = bound(right)
    price = left if at_left <= at_right else right
    return price, _rest(layers, value, seconds, price)


def _rest(
    layers: Sequence[Layer], value: Sequence[float], seconds: Sequence[float], price: float
) -> list[Floats]:
    """For every layer and state, the most that value - price x load of what follows can be."""
    rest = [np.zeros(1)]
    for layer in reversed(layers):
        gain = value[layer.group] - price * seconds[layer.group] if price else value[layer.group]
        if seconds[layer.group] == np.inf:
            gain = -np.inf
        after = rest[-1][layer.target] - price * layer.paid_s
        rest.append(np.maximum(after[:, OUT], after[:, IN] + gain))
    return rest[::-1]


def _search(
    layers: Sequence[Layer],
    value: Sequence[float],
    seconds: Sequence[float],
    wanted: tuple[float, float],
    completion: tuple[float, list[Floats]],
    cells: int,
) -> bool | None:
    """Whether some path within the limit is worth more; None where there are too many."""
    limit_s, worth = wanted
    price, rest = completion
    state, load, held = np.zeros(1, np.int64), np.zeros(1), np.zeros(1)
    for layer, remaining in zip(layers, rest[1:], strict=True):
        load = np.concatenate([load, load + seconds[layer.group]])
        held = np.concatenate([held, held + value[layer.group]])
        load += layer.paid_s[state].T.ravel()
        state = layer.target[state].T.ravel()
        possible = held + remaining[state] + price * (limit_s - load)
        keep = (load <= limit_s * (1 + ROUNDING)) & (possible > worth)
        state, load, held = _undominated(
            state[keep], load[keep], held[keep], np.floor(load[keep] * (cells / limit_s))
        )
        if len(state) > MAX_LABELS:
            return None
        if len(state) == 0:
            return False
    return bool((held > worth).any())


def _undominated(
    state: Integers, load: Floats, held: Floats, cell: Floats
) -> tuple[Integers, Floats, Floats]:
    """Of every state and cell one path, and only those that hold more than all lighter ones."""
    if len(state) == 0:
        return state, load, held
    order = np.lexsort((load, state))
    state, load, held, cell = state[order], load[order], held[order], cell[order]
    is_first = np.ones(len(state), np.bool_)
    is_first[1:] = (state[1:] != state[:-1]) | (cell[1:] != cell[:-1])
    held = np.maximum.reduceat(held, np.flatnonzero(is_first))
    state, load = state[is_first], load[is_first]
    # States ascend, so a running maximum of state and rank never reaches across states.
    levels, rank = np.unique(held, return_inverse=True)
    key = state * len(levels) + rank
    highest = np.maximum.accumulate(key)
    keep = np.ones(len(state), np.bool_)
    keep[1:] = (key[1:] > highest[:-1]) | (state[1:] != state[:-1])
    return state[keep], load[keep], held[keep]
