"""One micro-batch size and number of replicas: what a sweep over it looks up, and its limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps_agents.systems.sailor.candidates import Candidate, Counts
from heterps_agents.systems.sailor.cost import SHORT_PIPELINE
from heterps_agents.systems.sailor.kernels import PipelineTables, Work
from heterps_envs.arrays import Floats, Integers

# Bottleneck, slowest optimizer step of a layer, longest all-reduce; seconds.
Extremes = tuple[float, float, float]


@dataclass(frozen=True)
class Case:
    """A candidate on the numbers of GPUs that are worth using.

    Attributes:
        left: (S, types) GPUs of a replica that are not used.
        least: No pipeline of two stages or more is below.
        most: None is above.
    """

    candidate: Candidate
    counts: Counts
    tables: PipelineTables
    work: Work
    left: Integers
    least: Extremes
    most: Extremes

    @property
    def weights(self) -> Extremes:
        """How often each of the extremes counts in an iteration."""
        return float(self.candidate.rounds), 1.0, 1.0

    def rest_s(self, extremes: Extremes) -> float:
        """What the extremes add to the iteration."""
        return self.candidate.rounds * extremes[0] + extremes[1] + extremes[2]

    def coverable(self, bottleneck_s: float) -> Floats:
        """(S,) load that the GPUs left can carry at most."""
        per_gpu = self.candidate.options.load_per_gpu(np.array(bottleneck_s))
        # A little more, so that rounding refuses nothing.
        return np.asarray(self.left @ per_gpu * (1 + 1e-9))

    def usd_per_load(self, bottleneck_s: float) -> float:
        """Price per second of GPUs, of all replicas, that one more second of load asks for."""
        options = self.candidate.options
        per_gpu = options.load_per_gpu(np.array(bottleneck_s))
        if not per_gpu.any():
            return 0.0
        each = options.usd_per_s / np.maximum(per_gpu, 1e-300)
        return float(each.min()) * self.candidate.replicas * (1 - 1e-9)

    def extremes(self, stages: Integers) -> Extremes:
        """Bottleneck, optimizer step and all-reduce of a pipeline (rows: option, first, end)."""
        tables, last = self.tables, len(stages) - 1
        slowest = update_s = reduce_s = 0.0
        for row, (option, first, end) in enumerate(stages):
            seconds = tables.compute_s[option, end] - tables.compute_s[option, first]
            if row < last:
                twice = 2 if row == 0 and len(stages) > SHORT_PIPELINE else 1
                seconds += twice * tables.to_next_s[option, stages[row + 1][0], end]
            if row:
                twice = 2 if row == last else 1
                seconds += twice * tables.to_before_s[option, stages[row - 1][0], first]
            slowest = max(slowest, float(seconds))
            update_s = max(update_s, float(tables.update_s[option, first, end]))
            reduce_s = max(reduce_s, float(tables.reduce_s[option, first, end]))
        return slowest, update_s, reduce_s


def make_case(candidate: Candidate, counts: Counts) -> Case:
    """The tables and limits of a candidate on some numbers of GPUs."""
    ranges = candidate.ranges
    options, most = candidate.options, counts.used[-1]
    strides = np.concatenate(([1], np.cumprod(most + 1)))[:-1]
    step = strides[options.types] * options.degrees
    enough = counts.used[:, options.types] + options.degrees <= most[options.types]
    after = np.where(enough, np.arange(len(counts.used))[:, None] + step, 0)
    reached = np.where(enough & counts.may_grow[after], after, -1)
    tables = PipelineTables(
        options.compute_s,
        options.to_next_s,
        options.to_before_s,
        *ranges,
        options.state_bytes,
        options.flight_bytes,
        options.room_bytes,
        reached.astype(np.int64),
        step.astype(np.int64),
        options.least_s,
        int(min(options.compute_s.shape[1] - 1, most.sum())),
    )
    sends = options.to_next_s, options.to_before_s
    slowest_send_s = max(float(send[np.isfinite(send)].max(initial=0.0)) for send in sends)
    return Case(
        candidate,
        counts,
        tables,
        Work.of(tables),
        (most - counts.used).astype(np.int64),
        (
            float(options.least_bottleneck_s(most)),
            *ranges.least_s,
        ),
        (
            float(options.compute_s[:, -1].max()) + 2 * slowest_send_s,
            _largest_of(ranges.update_s),
            _largest_of(ranges.reduce_s),
        ),
    )


def _largest_of(table: Floats) -> float:
    return float(table[np.isfinite(table)].max(initial=0.0))
