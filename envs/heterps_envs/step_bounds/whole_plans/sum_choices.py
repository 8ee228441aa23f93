"""All choices of what replicas divide, followed from the last layer to the first.

They are told apart by what is in the two buckets that are open. Of those with the same open buckets
only the ones are kept that end their sums soonest, or have least to do after them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from heterps_envs.step_bounds.whole_plans.summed_layers import Ring

# Sums of seconds lose last digits.
ROUNDING = 1e-12
# Of the two buckets: of layers whose state each replica has, and of those whose state is divided.
WHOLE, DIVIDED = 0, 1
Kinds = tuple[int, ...]


class Allowance:
    """Choices that may still be followed, over all layers: 10,000 take about a tenth of a second.

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


class _Bucket(NamedTuple):
    """One that is not on its way yet, or with `is_over` none that ever will be."""

    has_layers: bool = False
    ready_s: float = 0.0
    gradient_bytes: float = 0.0
    summed_bytes: float = 0.0
    is_over: bool = False


class _Choice(NamedTuple):
    """Seconds until the sums so far are over, seconds after all sums, and what is divided."""

    sums_s: float
    later_s: float
    divided: tuple[int, ...]


_States = dict[tuple[_Bucket, _Bucket], list[_Choice]]


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
    most_s *= 1 + ROUNDING
    # Of what is in front of each part, the least seconds after the sums.
    front_s = [0.0]
    for part in reversed(parts):
        front_s.append(front_s[-1] + min(_later_s(ring, part, kind) for kind in part.kinds))
    passed_s = parts[-1].passed_s
    states: _States = {(_Bucket(), _Bucket()): [_Choice(0.0, 0.0, ())]}
    for part, least_s in zip(parts, front_s[-2::-1], strict=True):
        following: _States = {}
        for buckets, choices in states.items():
            for kind in part.kinds:
                _add(ring, part, kind, buckets, choices, following)
        states = {}
        for buckets, choices in following.items():
            soon = [
                choice
                for choice in choices
                if max(choice.sums_s, passed_s) + choice.later_s + least_s <= most_s
            ]
            if soon:
                states[buckets] = _best(soon)
                allowed.choices -= len(states[buckets])
        if allowed.choices < 0:
            return None
    ends = (
        SumsEnd(max(choice.sums_s, passed_s) + choice.later_s, frozenset(choice.divided))
        for buckets, choices in states.items()
        if not any(bucket.has_layers for bucket in buckets)
        for choice in choices
    )
    return min(ends, key=lambda end: end.after_s, default=SumsEnd(math.inf, frozenset()))


def _later_s(ring: Ring, part: Part, kind: int) -> float:
    """Seconds after all sums but for latencies."""
    if kind == WHOLE:
        return part.optimizer_s
    carried_s = (ring.size - 1) * part.summed_bytes / ring.size * ring.s_per_byte
    return part.optimizer_s / ring.size + carried_s


def _add(
    ring: Ring, part: Part, kind: int, buckets: tuple[_Bucket, _Bucket],
    choices: list[_Choice], following: _States,
) -> None:  # fmt: skip
    """With a part in a bucket, which then leaves, or stays open, or leaves as the last one."""
    bucket = buckets[kind]
    if bucket.is_over:
        return
    gradient_bytes = bucket.gradient_bytes + part.gradient_bytes
    summed_bytes = bucket.summed_bytes + part.summed_bytes
    ready_s = max(bucket.ready_s, part.ready_s)
    later_s, divided = part.optimizer_s, tuple[int, ...]()
    sum_s = ring.seconds(summed_bytes)
    if kind == DIVIDED:
        later_s, sum_s, divided = later_s / ring.size, sum_s / 2, part.layers
    is_full = gradient_bytes >= ring.least_bytes
    if not is_full:
        # Of layers in front only what they wait for beyond their own backward pass matters.
        waits_s = ready_s if ready_s > part.passed_s else 0.0
        own = _Bucket(True, waits_s, gradient_bytes, summed_bytes)
        stay = [_Choice(c.sums_s, c.later_s + later_s, c.divided + divided) for c in choices]
        following.setdefault(_with(buckets, kind, own), []).extend(stay)
    if kind == DIVIDED:
        later_s += sum_s
    leave = [
        _Choice(max(c.sums_s, ready_s) + sum_s, c.later_s + later_s, c.divided + divided)
        for c in choices
    ]
    own = _Bucket(is_over=not is_full)
    following.setdefault(_with(buckets, kind, own), []).extend(leave)


def _with(buckets: tuple[_Bucket, _Bucket], kind: int, own: _Bucket) -> tuple[_Bucket, _Bucket]:
    return (own, buckets[DIVIDED]) if kind == WHOLE else (buckets[WHOLE], own)


def _best(choices: list[_Choice]) -> list[_Choice]:
    """Those that no other one is as good as in both respects."""
    found, least_s = list[_Choice](), math.inf
    for choice in sorted(choices):
        if choice.later_s < least_s:
            found.append(choice)
            least_s = choice.later_s
    return found
