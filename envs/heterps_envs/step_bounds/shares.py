"""How much of a step one group of devices can do of a range of layers, if the step takes T seconds.

Of layers a .. b a group that does `share` of the micro-batches, all in full ones, needs

    T >= in_a + share C + max(optimizer, out_a)
    T >= in_a + unit F + around_b + share B + max(optimizer, out_a)     its first round trip
    T >= in_a + share F + around_b + unit B + max(optimizer, out_a)     its last one

with C, F, B its seconds for a micro-batch, forward and backward. Where it does not do all of them,
others hold the layers too, and gradients are summed. No sum begins before the last backward pass
does, and two devices send all gradients once (more send more):

    T >= in_a + share C - B + sum + optimizer

All its bytes have to fit, with the gradients or with what one micro-batch leaves. These hold of
every plan in which a device has one stage: passes of a device exclude each other, messages and sums
take what the fastest link takes, and what is in front of its first pass, and behind the last, has
to be done by others.
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
        shares: (O, L, L) of all micro-batches, by first and last layer; written to.
    """
    num_layers, num_options = len(n.in_s), len(n.class_of)
    for option in range(num_options):
        kind = n.class_of[option]
        for first in range(num_layers):
            for last in range(first, num_layers):
                shares[option, first, last] = 0.0
            for last in range(first, num_layers):
                found = _share(n, step_s, option, kind, first, last + 1)
                if found <= 0:
                    break  # more layers take longer, and more bytes
                shares[option, first, last] = found


@njit(cache=True)
def _share(n: Any, step_s: float, option: int, kind: int, first: int, stop: int) -> float:
    held = n.held_bytes[stop, option] - n.held_bytes[first, option]
    for row in range(2):
        beside = n.beside_bytes[row, stop, option] - n.beside_bytes[row, first, option]
        if held + beside > n.room_bytes[option] * (1 + _ROUNDING):
            return 0.0
    forward = n.forward_s[stop, option] - n.forward_s[first, option]
    backward = n.backward_s[stop, option] - n.backward_s[first, option]
    optimizer = n.optimizer_s[stop, option] - n.optimizer_s[first, option]
    left = step_s * (1 + _ROUNDING) - n.begin_s - n.in_s[first, kind]
    after = max(optimizer, n.out_s[first, kind])
    around = n.around_s[stop, kind]
    share = _quotient(left - after, forward + backward)
    share = min(share, _quotient(left - after - n.unit * forward - around, backward))
    share = min(share, _quotient(left - after - n.unit * backward - around, forward))
    share = _whole(n, share)
    if share >= n.total * (1 - _ROUNDING):
        return 1.0
    summed = n.reduce_s[stop, option] - n.reduce_s[first, option]
    hidden = backward if n.overlaps else 0.0
    alone = _quotient(left - optimizer - summed + hidden, forward + backward)
    return max(0.0, min(share, _whole(n, alone)) / n.total)


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
