"""Sets of replicas whose sums are known to the last digit, in rows that are added when needed.

All stages with some layers have the same ones. The least seconds after the begin of their last
backward pass are then those of `sum_times`, with the buckets and latencies that the simulator has.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import uncounted
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.needs import Needs
from heterps_envs.step_bounds.whole_plans.sum_choices import Allowance
from heterps_envs.step_bounds.whole_plans.sum_times import least_after
from heterps_envs.step_bounds.whole_plans.summed_layers import ring_among, summed_layers

# Sets of replicas that are remembered for a problem.
MOST_ROWS = 32
# Columns of a row's key: its first layer, the one after its last, and how many rows there are.
_FIRST, _STOP, _COUNTS = 0, 1, 2
_Asked = tuple[Problem, Needs, Allowance]


class Replicas(NamedTuple):
    """R rows, of O kinds of groups.

    Attributes:
        keys: (R, 2 + O) the first layer, the one after the last, and groups of each kind.
        after_s: (R, O) the least seconds from the begin of a group's last backward pass to the end
            of the step; 0: nothing is known.
        size: (1,) rows that are there.
        counts: (O,) of `replicas_after_s`.
    """

    keys: Integers
    after_s: Floats
    size: Integers
    counts: Integers

    @classmethod
    def of(cls, needs: Needs) -> Replicas:
        """No rows yet."""
        num_options = len(needs.class_of)
        return cls(
            keys=np.zeros((MOST_ROWS, 2 + num_options), np.int64),
            after_s=np.zeros((MOST_ROWS, num_options)),
            size=np.zeros(1, np.int64),
            counts=np.zeros(num_options, np.int64),
        )

    def add(self, problem: Problem, needs: Needs, spans: Integers, allowed: Allowance) -> bool:
        """Adds rows of a set of stages; whether that says anything new.

        Args:
            problem: What is asked.
            needs: Of the problem.
            spans: (S, 3) the kind of group of each stage, its first layer, the one after its last.
            allowed: Choices of what to divide that may be followed.
        """
        ranges = Counter((first, stop) for _, first, stop in spans.tolist())
        is_new = False
        for (first, stop), count in ranges.items():
            others = sum(
                number
                for (begin, end), number in ranges.items()
                if begin < stop and first < end and (begin, end) != (first, stop)
            )
            if count > 1 and not others:
                own = (spans[:, 1] == first) & (spans[:, 2] == stop)
                counts = np.bincount(spans[own, 0], minlength=len(self.counts))
                is_new |= self._add_row((problem, needs, allowed), range(first, stop), counts)
        return is_new

    def _add_row(self, asked: _Asked, layers: range, counts: Integers) -> bool:
        row = int(self.size[0])
        key = np.array([layers.start, layers.stop, *counts.tolist()])
        if row == MOST_ROWS or asked[2].choices < 0 or (self.keys[:row] == key).all(axis=1).any():
            return False
        self.keys[row], self.size[0] = key, row + 1
        for option in np.flatnonzero(counts).tolist():
            others = np.flatnonzero(counts).tolist()
            after_s = [_after_s(asked, layers, counts, (option, each)) for each in others]
            self.after_s[row, option] = max(after_s)
        return bool(self.after_s[row].any())


def _after_s(asked: _Asked, layers: range, counts: Integers, ends: tuple[int, int]) -> float:
    """Seconds after one kind of group begins its last backward pass until another has stepped."""
    (problem, needs, allowed), (passing, stepping) = asked, ends
    groups = Counter(
        {
            (int(needs.class_of[each]), int(needs.degree[each])): int(counts[each])
            for each in np.flatnonzero(counts)
        }
    )
    ring = ring_among(problem, groups)
    backward_s = np.diff(needs.backward_s[:, passing])
    # Of layers whose state no other group has.
    optimizer_s = np.diff(needs.optimizer_s[0, :, stepping])
    degrees = {degree for _, degree in groups}
    summed = summed_layers(problem, degrees, layers, backward_s, optimizer_s)
    if ring is None or summed is None:
        return 0.0
    divides = problem.strategy.shard_state == "auto" and len(degrees) == 1
    found = least_after(summed, ring, allowed, divides=divides)
    return 0.0 if found is None else found.after_s


@uncounted
def replicas_after_s(replicas: Any, spans: Any, count: int, stage: int) -> float:
    """The least seconds of a stage, of so many, that are known; 0: nothing is.

    Args:
        replicas: `Replicas`.
        spans: (D, 3) as of `Replicas.add`.
        count: Stages.
        stage: Which.
    """
    size = replicas.size[0]
    if size == 0:
        return 0.0
    _, first, stop = spans[stage]
    counts = replicas.counts
    for option in range(len(counts)):
        counts[option] = 0
    for other in range(count):
        option, begin, end = spans[other]
        if begin == first and end == stop:
            counts[option] += 1
        elif begin < stop and first < end:
            return 0.0
    for row in range(size):
        is_same = replicas.keys[row, _FIRST] == first and replicas.keys[row, _STOP] == stop
        for option in range(len(counts)):
            is_same = is_same and replicas.keys[row, _COUNTS + option] == counts[option]
        if is_same:
            return float(replicas.after_s[row, spans[stage, 0]])
    return 0.0
