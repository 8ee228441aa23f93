"""How much of a step one group of devices can do of a range of layers, if the step takes T seconds.

Of layers a .. b a group that does `share` of the micro-batches, all in full ones, needs

    T >= in_a + share C + max(optimizer, out_a)
    T >= in_a + unit F + around_b + share B + max(optimizer, out_a)     its first round trip
    T >= in_a + share F + around_b + unit B + max(optimizer, out_a)     its last one

with C, F, B its seconds for a micro-batch, forward and backward. If it does all of them, it alone
has the layers: their whole state, and their whole optimizer step. Else n >= 2 groups have them, and
gradients are summed. A layer's sum does not begin before the last backward pass has gone through
that layer, and a device has one sum at a time. So if r_l are seconds of the sums, o_l those of the
optimizer step (one part in n of them where state is sharded, and then half of the sum comes after
the step), for every layer k of the range

    T >= in_a + (share C - B) + sum_{l >= k} B_l + sum_{l <= k} (r_l + o_l / n)
         + sum_{l > k} min(o_l, r_l / 2 + o_l / n)

Who does `share` leaves `total - share` to the other owners, none of whom does more of the layer
than the largest share `most` that any group can have of it: so n >= 1 + (total - share) / most, and
r_l grows with n (`sums`).

A group's memory has room for `h` micro-batches in flight, and for `g` beside the gradients, which
are there from the first backward pass on. Of any h + 1 forward passes in a row the first one's
backward pass is over when the last one begins; so, where all micro-batches are equal,

    T >= in_a + (1 + ceil((share - h) / g)) (C + around_b) + max(optimizer, out_a)

These hold of every plan in which a device has one stage: passes of a device exclude each other,
messages and sums take what the fastest link takes, and what is in front of its first pass, and
behind the last, has to be done by others.
"""

from __future__ import annotations

import math
from typing import Any

from heterps_envs.compiled import ONE, ZERO, inlined, uncounted, uncounted_helper

# Of a count: sums of seconds lose last digits.
ROUNDING = 1e-9
# Of largest shares, which are found where a step takes a little longer than T.
SHARES_ROUNDING = 1e-6
# How often a share is lowered by what its own sums take.
TIMES = 3
# Layers of a range whose inequality of sums is looked at, less one: a power of two.
LOOKS_BITS = 3
LOOKS = 1 << LOOKS_BITS

ALONE, AMONG = ZERO, ONE


@uncounted
def most_shares(n: Any, step_s: float, ways: Any, most: Any, is_inside: bool, shares: Any) -> None:
    """Writes what one group can do at most.

    Args:
        n: `Needs`.
        step_s: T.
        ways: Rows of `Needs.in_s` and of `Needs.around_s`: 1 where those come from other nodes.
        most: (L, L) of the layers from the first to the last one, the largest share of any.
        is_inside: All owners of the layers are on one node.
        shares: (O, L, L) of all micro-batches, by first and last layer; written to. Below 0: that
            is nothing, and nothing either for any more layers.
    """
    num_layers, num_options = n.in_s.shape[1], len(n.class_of)
    for option in range(num_options):
        for first in range(num_layers):
            is_over = False
            for last in range(first, num_layers):
                found = -1.0
                if not is_over:
                    span = (option, first, last + 1, ways[0], ways[1])
                    found = _share(n, step_s, span, most[first, last], is_inside)
                is_over = is_over or found < 0
                shares[option, first, last] = found


@uncounted
def spread_most(shares: Any, by_layer: Any, most: Any) -> None:
    """Writes the largest share of each layer, and (L, L) the largest of those of a range."""
    num_options, num_layers = shares.shape[:2]
    by_layer[:] = 0.0
    for option in range(num_options):
        for first in range(num_layers):
            best = 0.0
            for last in range(num_layers - 1, first - 1, -1):
                best = max(best, shares[option, first, last])
                by_layer[last] = max(by_layer[last], best)
    for first in range(num_layers):
        best = 0.0
        for last in range(first, num_layers):
            best = max(best, by_layer[last])
            most[first, last] = max(best, 1e-12)


@inlined
def _share(n: Any, step_s: float, span: Any, most: float, is_inside: bool) -> float:
    share = in_time_and_memory(n, step_s, span, AMONG)
    if share <= 0:
        return float(share)
    # Alone it does no more than among others.
    if share >= n.total * (1 - ROUNDING):
        alone = in_time_and_memory(n, step_s, span, ALONE)
        if alone >= n.total * (1 - ROUNDING):
            return 1.0
    share = min(share, n.total - n.unit)
    known = 0
    for _ in range(TIMES):
        owners = least_owners(n, share, most)
        if owners == known:
            break
        known = owners
        kind = n.class_of[span[0]]
        if is_inside and owners > n.node_size[kind]:
            return 0.0
        after_s = _sums_s(n, span, owners)
        less = whole(n, summed_share(n, step_s, span, after_s))
        if less >= share or less <= 0:
            return float(max(0.0, min(share, less)) / n.total)
        share = less
    return float(share / n.total)


@uncounted_helper
def least_owners(n: Any, share: float, most: float) -> int:
    """Owners of a layer of which one group does a share, in full micro-batches."""
    others = math.ceil((1 - share / n.total) / most * (1 - SHARES_ROUNDING) - ROUNDING)
    return int(min(1 + max(1, others), n.sums.wait_s.shape[1] - 1))


@uncounted_helper
def summed_share(n: Any, step_s: float, span: Any, after_s: float) -> float:
    """Micro-batches where so many seconds follow the begin of the last backward pass."""
    option, first, stop, front, _ = span
    forward = n.forward_s[stop, option] - n.forward_s[first, option]
    backward = n.backward_s[stop, option] - n.backward_s[first, option]
    left = step_s * (1 + ROUNDING) - n.in_s[front, first, option]
    return quotient(left - after_s + backward, forward + backward)


@uncounted_helper
def _sums_s(n: Any, span: Any, owners: int) -> float:
    """Least seconds from the begin of the last backward pass to the end of the step."""
    option, first, stop, _, _ = span
    b, sum_s, rest_s = n.backward_s, n.sums.sum_s, n.sums.rest_s
    before_s = sum_s[0, owners, first, option]
    if not n.overlaps:
        after_s = b[stop, option] - b[first, option] + sum_s[0, owners, stop, option] - before_s
    else:
        most_s = -math.inf
        # Every layer says something; a few of them say nearly all.
        for part in range(LOOKS + 1):
            layer = first + (part * (stop - 1 - first) >> LOOKS_BITS)
            most_s = max(most_s, n.delay_s[owners, option, layer])
        after_s = b[stop, option] + rest_s[0, owners, stop, option] - before_s + most_s
    return float(after_s + n.sums.wait_s[0, owners, n.class_of[option]])


@uncounted_helper
def in_time_and_memory(n: Any, step_s: float, span: Any, held: int) -> float:
    """Micro-batches without sums of gradients; below 0: nothing, nor of any more layers.

    Args:
        n: `Needs`.
        step_s: T.
        span: The option, first layer, the layer after the last, and the two `ways`.
        held: `ALONE`, or `AMONG` other owners.
    """
    option, first, stop, front, back = span
    optimizer = n.optimizer_s[held, stop, option] - n.optimizer_s[held, first, option]
    state = n.state_bytes[held, stop, option] - n.state_bytes[held, first, option]
    left = step_s * (1 + ROUNDING) - n.in_s[front, first, option]
    left -= max(optimizer, n.out_s[front, first, option])
    room = n.room_bytes[option] * (1 + ROUNDING) - state
    gradients = n.gradient_bytes[stop, option] - n.gradient_bytes[first, option]
    around = n.around_s[back, stop, option]
    return float(micro_batches_in(n, (option, first, stop), left, around, room, gradients))


@inlined
def micro_batches_in(
    n: Any, span: Any, left: float, around: float, room: float, gradients: float
) -> float:
    """Micro-batches in so many seconds; below 0: nothing, nor of any more layers.

    Args:
        n: `Needs`.
        span: The option, first layer, and the layer after the last.
        left: Seconds between the ways in and out.
        around: From the end of a forward to its backward pass.
        room: Bytes beside weights and optimizer state.
        gradients: Bytes of them.
    """
    option, first, stop = span
    forward = n.forward_s[stop, option] - n.forward_s[first, option]
    backward = n.backward_s[stop, option] - n.backward_s[first, option]
    share = whole(n, quotient(left, forward + backward))
    if share <= 0 or gradients > room:
        return -1.0
    share = min(share, quotient(left - n.unit * forward - around, backward))
    share = min(share, quotient(left - n.unit * backward - around, forward))
    kept = n.kept_bytes[stop, option] - n.kept_bytes[first, option]
    kept = n.unit * (kept + n.front_bytes[first, option] + n.back_bytes[stop - 1, option])
    once_s = n.unit * (forward + backward) + around
    share = min(share, by_memory(n, room, gradients, kept, left / max(once_s, 1e-300)))
    return float(max(0.0, min(whole(n, share), n.total)))


@uncounted_helper
def by_memory(n: Any, room: float, gradients: float, kept: float, times: float) -> float:
    """Full micro-batches that fit, a few at a time, where so many fit one after another."""
    if kept <= 0:
        return math.inf
    at_first = math.floor(room / kept + ROUNDING)
    later = max(0.0, math.floor((room - gradients) / kept + ROUNDING))
    if at_first < 1:
        return 0.0
    if not n.are_equal:
        return math.inf
    rounds = math.floor(times + ROUNDING)
    return 0.0 if rounds < 1 else float(n.unit * (at_first + (rounds - 1) * later))


@uncounted_helper
def quotient(left: float, each: float) -> float:
    """How often something fits; below 0: never."""
    if left < 0:
        return -1.0
    return left / each if each > 0 else math.inf


@uncounted_helper
def whole(n: Any, share: float) -> float:
    """A device has a whole number of equal micro-batches, and no less than the smallest."""
    if n.are_equal and share < math.inf:
        share = math.floor(share / n.unit + ROUNDING) * n.unit
    return share if share >= n.unit * (1 - ROUNDING) else 0.0
