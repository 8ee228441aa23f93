"""All choices of what replicas divide, followed from the last layer to the first.

They are told apart by what is in the two buckets that are open. Of those with the same open buckets
only the ones are kept that end their sums soonest, or have least to do after them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.compiled import allocating, allocating_helper, uncounted_helper
from heterps_envs.step_bounds.whole_plans.summed_layers import Ring

# Sums of seconds lose last digits.
ROUNDING = 1e-12
# Of the two buckets: of layers whose state each replica has, and of those whose state is divided.
WHOLE, DIVIDED = 0, 1
Kinds = tuple[int, ...]
# Columns of a choice: seconds until the sums so far are over, seconds after all sums, and of each
# bucket whether it is open, and what is in it.
_SUMS_S, _LATER_S, _COLUMNS = 0, 1, 10
_FIRST, _PER_BUCKET = 2, 4
_STATE, _READY_S, _GRADIENT_BYTES, _SUMMED_BYTES = 0, 1, 2, 3
# Not on its way yet with layers in it, and none that ever will be: an empty one has zeros.
_OPEN, _OVER = 1.0, 2.0


class Allowance:
    """Choices that may still be followed, over all layers: 10,000 take some milliseconds.

    Args:
        choices: How many.
    """

    def __init__(self, choices: int) -> None:
        self.choices = choices


class SumsEnd(NamedTuple):
    """What the best choice comes to.

    Attributes:
        after_s: Seconds from the begin of the last backward pass to the end of the step.
        divided: Layers, of the K, whose state is divided.
    """

    after_s: float
    divided: frozenset[int]


class Part(NamedTuple):
    """Layers that come into a bucket together, when the pass is through the first of them.

    Their gradients are complete after `ready_s`, as a rule that is then.
    """

    layers: tuple[int, ...]
    kinds: Kinds
    passed_s: float
    ready_s: float
    optimizer_s: float
    gradient_bytes: float
    summed_bytes: float


class _Parts(NamedTuple):
    """P parts from the back, as kernels read them.

    Attributes:
        passed_s: (P,) seconds until the pass is through the part.
        ready_s: (P,) until its gradients are complete.
        optimizer_s: (P,) of its optimizer step.
        gradient_bytes: (P,) by which buckets are divided.
        summed_bytes: (P,) that are summed.
        may_be: (P, 2) whether a kind is allowed.
        front_s: (P,) the least seconds after all sums of the parts in front of it.
    """

    passed_s: Floats
    ready_s: Floats
    optimizer_s: Floats
    gradient_bytes: Floats
    summed_bytes: Floats
    may_be: Any
    front_s: Floats


def followed(ring: Ring, parts: list[Part], most_s: float, allowed: Allowance) -> SumsEnd | None:
    """The best choice of sums beside the last backward pass.

    Args:
        ring: Over which.
        parts: From the back.
        most_s: Of what takes more seconds nothing is said.
        allowed: Its end ends this.

    Returns:
        One of endless seconds where all take more; None of too many choices.
    """
    kinds = np.zeros(len(parts), np.int64)
    table = _Parts(
        passed_s=np.array([part.passed_s for part in parts]),
        ready_s=np.array([part.ready_s for part in parts]),
        optimizer_s=np.array([part.optimizer_s for part in parts]),
        gradient_bytes=np.array([part.gradient_bytes for part in parts], float),
        summed_bytes=np.array([part.summed_bytes for part in parts], float),
        may_be=np.array([[kind in part.kinds for kind in (WHOLE, DIVIDED)] for part in parts]),
        front_s=_front_s(ring, parts),
    )
    after_s, num_kept = _follow(ring, table, most_s * (1 + ROUNDING), allowed.choices, kinds)
    allowed.choices -= num_kept
    if allowed.choices < 0:
        return None
    divided = (part.layers for part, kind in zip(parts, kinds, strict=True) if kind == DIVIDED)
    return SumsEnd(after_s, frozenset(layer for layers in divided for layer in layers))


def _front_s(ring: Ring, parts: list[Part]) -> Floats:
    """(P,) least seconds after all sums but for latencies, of what is in front of each part."""
    carried_s = (ring.size - 1) / ring.size * ring.s_per_byte
    found = np.zeros(len(parts))
    for number in range(len(parts) - 1, 0, -1):
        part = parts[number]
        later_s = part.optimizer_s, part.optimizer_s / ring.size + part.summed_bytes * carried_s
        found[number - 1] = found[number] + min(later_s[kind] for kind in part.kinds)
    return found


@allocating
def _follow(ring: Any, parts: Any, most_s: float, most: int, kinds: Any) -> tuple[float, int]:
    """The least seconds, and how many choices were kept, until they were more than allowed.

    Args:
        ring: `Ring`.
        parts: `_Parts`.
        most_s: Of what takes more seconds nothing is said.
        most: Choices that may be kept.
        kinds: (P,) the kinds of the best choice are written here.
    """
    num_parts, num_kept = len(parts.passed_s), 0
    choices = np.zeros((1, _COLUMNS))
    # Of each choice that was kept, its part's kind and which one it goes on from.
    ways, starts = np.zeros((64, 2), np.int64), np.zeros(num_parts, np.int64)
    for number in range(num_parts):
        found = np.empty((4 * len(choices), _COLUMNS))
        origins = np.empty((4 * len(choices), 2), np.int64)
        kept = _best(found, _go_on(ring, parts, number, choices, most_s, found, origins))
        starts[number] = num_kept
        num_kept += len(kept)
        if num_kept > most:
            return math.inf, num_kept
        while len(ways) < num_kept:
            ways = np.concatenate((ways, np.zeros_like(ways)))
        choices = np.empty((len(kept), _COLUMNS))
        for row in range(len(kept)):
            _copy(found[kept[row]], choices[row])
            _copy(origins[kept[row]], ways[starts[number] + row])
    least_s, best = math.inf, -1
    for row in range(len(choices)):
        own = choices[row]
        if own[_FIRST + _STATE] != _OPEN and own[_FIRST + _PER_BUCKET + _STATE] != _OPEN:
            after_s = _over_s(parts, own)
            if after_s < least_s:
                least_s, best = after_s, row
    if best >= 0:
        for number in range(num_parts - 1, -1, -1):
            row = starts[number] + best
            kinds[number], best = ways[row, 0], ways[row, 1]
    return least_s, num_kept


@uncounted_helper
def _go_on(
    ring: Any, parts: Any, number: int, choices: Any, most_s: float, found: Any, origins: Any
) -> int:
    """Writes down all choices for one more part, but for those that take too long; how many."""
    count = 0
    for index in range(len(choices)):
        for kind in (WHOLE, DIVIDED):
            first = count
            if parts.may_be[number, kind]:
                count = _add(ring, parts, number, kind, choices[index], found, count)
            end = first
            for row in range(first, count):
                if _over_s(parts, found[row]) + parts.front_s[number] <= most_s:
                    _copy(found[row], found[end])
                    origins[end, 0], origins[end, 1] = kind, index
                    end += 1
            count = end
    return count


@uncounted_helper
def _over_s(parts: Any, choice: Any) -> float:
    """Seconds until a choice is over, if nothing is in front of its parts."""
    passed_s = parts.passed_s[len(parts.passed_s) - 1]
    return max(choice[_SUMS_S], passed_s) + choice[_LATER_S]  # type: ignore[no-any-return]


@uncounted_helper
def _add(ring: Any, parts: Any, number: int, kind: int, choice: Any, found: Any, count: int) -> int:
    """With a part in a bucket, which then leaves, or stays open, or leaves as the last one."""
    at = _FIRST + kind * _PER_BUCKET
    if choice[at + _STATE] == _OVER:
        return count
    gradient_bytes = choice[at + _GRADIENT_BYTES] + parts.gradient_bytes[number]
    summed_bytes = choice[at + _SUMMED_BYTES] + parts.summed_bytes[number]
    ready_s = max(choice[at + _READY_S], parts.ready_s[number])
    later_s = parts.optimizer_s[number]
    # As `Ring.seconds`: kernels call no methods.
    in_turn_s = ring.latency_s + summed_bytes / ring.size * ring.s_per_byte
    sum_s = 2 * (ring.size - 1) * in_turn_s
    if kind == DIVIDED:
        later_s, sum_s = later_s / ring.size, sum_s / 2
    is_full = gradient_bytes >= ring.least_bytes
    if not is_full:
        _copy(choice, found[count])
        found[count, _LATER_S] += later_s
        found[count, at + _STATE] = _OPEN
        # Of layers in front only what they wait for beyond their own backward pass matters.
        waits_s = ready_s if ready_s > parts.passed_s[number] else 0.0
        found[count, at + _READY_S] = waits_s
        found[count, at + _GRADIENT_BYTES] = gradient_bytes
        found[count, at + _SUMMED_BYTES] = summed_bytes
        count += 1
    if kind == DIVIDED:
        later_s += sum_s
    _copy(choice, found[count])
    found[count, _SUMS_S] = max(choice[_SUMS_S], ready_s) + sum_s
    found[count, _LATER_S] += later_s
    for column in range(at, at + _PER_BUCKET):
        found[count, column] = 0.0
    if not is_full:
        found[count, at + _STATE] = _OVER
    return count + 1


@allocating_helper
def _best(found: Any, count: int) -> Any:
    """Of so many rows those that no other one with the same buckets is as good as, in order."""
    mixed, bits = np.empty(count), found.view(np.uint64)
    for row in range(count):
        mixed[row] = _mixed(bits[row])
    # The same buckets in a row, and of these the ones whose sums are over sooner first.
    order = np.argsort(found[:count, _LATER_S].copy(), kind="mergesort")
    order = order[np.argsort(found[:, _SUMS_S][order], kind="mergesort")]
    order = order[np.argsort(mixed[order], kind="mergesort")]
    num_kept, last = 0, -1
    for row in order:
        is_other = last < 0 or not _are_alike(found[row], found[last])
        if is_other or found[row, _LATER_S] < found[last, _LATER_S]:
            order[num_kept] = row
            num_kept += 1
            last = row
    return order[:num_kept]


@uncounted_helper
def _copy(row: Any, to: Any) -> None:
    for column in range(len(row)):
        to[column] = row[column]


@uncounted_helper
def _mixed(bits: Any) -> float:
    """A number for what is in the buckets, which others have by chance alone (FNV-1a, mixed)."""
    hashed = np.uint64(14695981039346656037)
    for column in range(_FIRST, _COLUMNS):
        hashed = (hashed ^ bits[column]) * np.uint64(1099511628211)
        hashed ^= hashed >> np.uint64(29)
    return float(hashed >> np.uint64(11))


@uncounted_helper
def _are_alike(one: Any, other: Any) -> bool:
    """Whether the same is in their buckets."""
    num_equal = 0
    for column in range(_FIRST, _COLUMNS):
        num_equal += one[column] == other[column]
    return num_equal == _COLUMNS - _FIRST
