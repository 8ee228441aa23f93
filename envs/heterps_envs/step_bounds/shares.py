"""How much of a step one group of devices can do of a range of layers, if the step takes T seconds.

Of layers a .. b a group that does `share` of the micro-batches, all in full ones, needs

    T >= in_a + share C + max(optimizer, out_a)
    T >= in_a + unit F + around_b + share B + max(optimizer, out_a)     its first round trip
    T >= in_a + share F + around_b + unit B + max(optimizer, out_a)     its last one

with C, F, B its seconds for a micro-batch, forward and backward. Where it does not do all of them,
others hold the layers too, and gradients are summed. No sum begins before the last backward pass
does, and two devices send all gradients once (more send more):

    T >= in_a + share C - B + sum + optimizer

Its memory has room for `h` micro-batches in flight, and for `g` beside the gradients, which are
there from the first backward pass on. Of any h + 1 forward passes in a row the first one's backward
pass is over when the last one begins; so, where all micro-batches are equal,

    T >= in_a + (1 + ceil((share - h) / g)) (C + around_b) + max(optimizer, out_a)

These hold of every plan in which a device has one stage: passes of a device exclude each other,
messages and sums take what the fastest link takes, and what is in front of its first pass, and
behind the last, has to be done by others.
"""

from __future__ import annotations

import math
from typing import Any

from numba import njit

# Of a count: sums of seconds lose last digits.
_ROUNDING = 1e-9


@njit(cache=True)
def most_shares(n: Any, step_s: float, shares: Any) -> None:
    """Writes what one group can do at most.

    Args:
        n: `Needs`.
        step_s: T.
        shares: (O, L, L) of all micro-batches, by first and last layer; written to. Below 0: that
            is nothing, and nothing either for any more layers.
    """
    num_layers, num_options = len(n.in_s), len(n.class_of)
    for option in range(num_options):
        kind = n.class_of[option]
        for first in range(num_layers):
            for last in range(first, num_layers):
                found = _share(n, step_s, option, kind, first, last + 1)
                shares[option, first, last] = found
                if found < 0:
                    break


@njit(cache=True)
def _share(n: Any, step_s: float, option: int, kind: int, first: int, stop: int) -> float:
    forward = n.forward_s[stop, option] - n.forward_s[first, option]
    backward = n.backward_s[stop, option] - n.backward_s[first, option]
    optimizer = n.optimizer_s[stop, option] - n.optimizer_s[first, option]
    left = step_s * (1 + _ROUNDING) - n.in_s[first, kind]
    after = max(optimizer, n.out_s[first, kind])
    share = _whole(n, _quotient(left - after, forward + backward))
    state = n.state_bytes[stop, option] - n.state_bytes[first, option]
    gradients = n.gradient_bytes[stop, option] - n.gradient_bytes[first, option]
    room = n.room_bytes[option] * (1 + _ROUNDING) - state
    if share <= 0 or gradients > room:
        return -1.0
    around = n.around_s[stop, kind]
    share = min(share, _quotient(left - after - n.unit * forward - around, backward))
    share = min(share, _quotient(left - after - n.unit * backward - around, forward))
    kept = n.kept_bytes[stop, option] - n.kept_bytes[first, option]
    kept = n.unit * (kept + n.front_bytes[first, option] + n.back_bytes[stop - 1, option])
    once_s = n.unit * (forward + backward) + around
    share = min(share, _by_memory(n, room, gradients, kept, (left - after) / max(once_s, 1e-300)))
    share = _whole(n, share)
    if share >= n.total * (1 - _ROUNDING):
        return 1.0
    summed = n.reduce_s[stop, option] - n.reduce_s[first, option]
    hidden = backward if n.overlaps else 0.0
    alone = _quotient(left - optimizer - summed + hidden, forward + backward)
    return float(max(0.0, min(share, _whole(n, alone)) / n.total))


@njit(cache=True)
def _by_memory(n: Any, room: float, gradients: float, kept: float, times: float) -> float:
    """Full micro-batches that fit, a few at a time, where so many fit one after another."""
    if kept <= 0:
        return math.inf
    at_first = math.floor(room / kept + _ROUNDING)
    later = max(0.0, math.floor((room - gradients) / kept + _ROUNDING))
    if at_first < 1:
        return 0.0
    if not n.are_equal:
        return math.inf
    rounds = math.floor(times + _ROUNDING)
    return 0.0 if rounds < 1 else float(n.unit * (at_first + (rounds - 1) * later))


@njit(cache=True)
def _quotient(left: float, each: float) -> float:
    if left < 0:
        return -1.0
    return left / each if each > 0 else math.inf


@njit(cache=True)
def _whole(n: Any, share: float) -> float:
    """A device has a whole number of equal micro-batches, and no less than the smallest."""
    if n.are_equal and share < math.inf:
        share = math.floor(share / n.unit + _ROUNDING) * n.unit
    return share if share >= n.unit * (1 - _ROUNDING) else 0.0
