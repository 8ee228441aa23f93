"""Drift: which device or link has become slower or faster than predicted, told step by step.

For each subject one stream of ratios comes in, measured over predicted seconds, one a step. Their
logarithm less what is believed already (the level, 0 at first) is tested by a two-sided CUSUM
(Page, Biometrika 41, 1954) on clipped values: each adds its excess over `SLACK`, at most
`CLIP - SLACK`, so that a single spike weighs no more than a step of honest drift. The sum must
exceed a limit that grows with the noise of the subject (its MAD), and then the median of the steps
since the sum left zero must confirm it: at least `MIN_STEPS` of them, beyond `SLACK`, and beyond
`MIN_SIGMAS` standard errors. That median is the new level. So one-off spikes are ignored however
large they are, and drift is told within a few steps, more where the subject is noisy.
`python benchmarks/online/online.py --only monitor` measures both error rates.

Ratios refer to the problem that the run began with, also under later plans and corrections: a
subject whose level falls back to 1 has recovered.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Literal, NamedTuple

Kind = Literal["device", "stage", "link"]
Change = Literal["drifted", "recovered"]

# Logarithms of ratios up to this are as predicted; the smallest drift that is surely found is twice
# as large, 10 %.
SLACK = 0.05
# No step counts more; 0.2 is a slowdown by 22 %.
CLIP = 0.2
# The sum's limit for a quiet subject: four clipped steps in a row.
QUIET_LIMIT = 0.6
# False alarms of noise become rarer by a factor of e with each unit.
NOISE_LIMIT = 9.0
MIN_STEPS = 5
MIN_SIGMAS = 4.0
# Standard error of a median of normal values, in standard deviations of the mean.
MEDIAN_ERROR = 1.2533
# A normal distribution's standard deviation over its median absolute deviation.
DEVIATION_OVER_MAD = 1.4826
# Steps that the noise is estimated from, and how often.
NOISE_STEPS, NOISE_EVERY = 64, 4
# Until so many are there, the noise counts as at least `UNKNOWN_NOISE`; never as less than the
# least, which is what a clock and a scheduler do.
KNOWN_AFTER, UNKNOWN_NOISE, LEAST_NOISE = 8, 0.05, 0.005


class Subject(NamedTuple):
    """What may drift: a device (`d1`), a stage on it (`s0 on d1`), a link (`d0->d1`)."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        """The name alone, which says what it is of."""
        return self.name


class DriftEvent(NamedTuple):
    """A subject has changed.

    Attributes:
        kind: `recovered`: it is as predicted again.
        factor: Measured over predicted seconds, from now on; above 1 is slower.
        since_step: The first step of the change, as far as can be told.
        step: When it was noticed.
        significance: The change over the standard error of its estimate.
    """

    subject: Subject
    kind: Change
    factor: float
    since_step: int
    step: int
    significance: float

    @property
    def text(self) -> str:
        """The drift in one line, for people, who count steps from 1."""
        what = f"{self.subject} takes {self.factor:.2f} x its predicted time"
        if self.kind == "recovered":
            what = f"{self.subject} takes its predicted time again ({self.factor:.2f} x)"
        return f"{what} since step {self.since_step + 1} ({self.significance:.0f} sigma)"


class DriftMonitor:
    """Tests every subject at every step."""

    def __init__(self) -> None:
        self._streams: dict[Subject, _Stream] = {}

    def take(self, step: int, ratios: Mapping[Subject, float]) -> list[DriftEvent]:
        """Takes one step.

        Args:
            step: Its number, for the events; steps that are repeated come again.
            ratios: Measured over predicted seconds, above 0; subjects that were not measured in
                this step are left out.

        Returns:
            What has changed, as noticed now.
        """
        events = []
        for subject, ratio in ratios.items():
            stream = self._streams.setdefault(subject, _Stream())
            found = stream.take(step, math.log(ratio))
            if found is not None:
                kind: Change = "drifted" if stream.has_drifted else "recovered"
                factor, since_step, significance = found
                events.append(DriftEvent(subject, kind, factor, since_step, step, significance))
        return events

    def begin_plan(self) -> None:
        """Another plan runs: its stages are others, devices and links are the same."""
        for subject in [subject for subject in self._streams if subject.kind == "stage"]:
            del self._streams[subject]
        for stream in self._streams.values():
            stream.forget_sums()

    def factors(self) -> dict[Subject, float]:
        """Measured over predicted seconds as believed now; 1 where nothing has drifted."""
        return {subject: math.exp(stream.level) for subject, stream in self._streams.items()}

    def noise(self) -> dict[Subject, float]:
        """Standard deviation of the logarithm of one step's ratio."""
        return {subject: stream.noise for subject, stream in self._streams.items()}


class _Sum:
    """One side of a CUSUM."""

    def __init__(self) -> None:
        self.value, self.start = 0.0, 0

    def take(self, number: int, excess: float, limit: float) -> bool:
        """Whether the sum is beyond its limit."""
        if self.value == 0.0:
            self.start = number
        # Beyond the limit it need not grow: else a refused alarm would stand for long.
        self.value = min(max(0.0, self.value + excess), limit)
        return self.value >= limit


class _Stream:
    """The ratios of one subject.

    Attributes:
        level: Logarithm that is believed.
        noise: Standard deviation of one step's logarithm.
    """

    def __init__(self) -> None:
        self.level, self.noise = 0.0, UNKNOWN_NOISE
        # How many came before, the step, and how far it was from the level of its time.
        self._recent: deque[tuple[int, int, float]] = deque(maxlen=NOISE_STEPS)
        self._num_taken = 0
        self.forget_sums()

    @property
    def has_drifted(self) -> bool:
        """Whether times are other than predicted."""
        return self.level != 0.0

    def forget_sums(self) -> None:
        """Begins the test anew."""
        self._up, self._down = _Sum(), _Sum()

    def take(self, step: int, logarithm: float) -> tuple[float, int, float] | None:
        """Takes one step; returns factor, first step and significance of a change."""
        residual = logarithm - self.level
        self._num_taken += 1
        self._recent.append((self._num_taken, step, residual))
        if self._num_taken % NOISE_EVERY == 0 or self._num_taken < KNOWN_AFTER:
            self._estimate_noise()
        limit = max(QUIET_LIMIT, NOISE_LIMIT * self.noise**2 / (2 * SLACK))
        clip = max(CLIP, 3 * self.noise)
        excess = min(max(residual, -clip), clip)
        is_up = self._up.take(self._num_taken, excess - SLACK, limit)
        is_down = self._down.take(self._num_taken, -excess - SLACK, limit)
        if not (is_up or is_down):
            return None
        return self._confirmed((self._up if is_up else self._down).start)

    def _confirmed(self, start: int) -> tuple[float, int, float] | None:
        recent = [(step, value) for number, step, value in self._recent if number >= start]
        start_step, since = recent[0][0], [value for _, value in recent]
        shift = statistics.median(since)
        error = MEDIAN_ERROR * self.noise / math.sqrt(len(since))
        if len(since) < MIN_STEPS or abs(shift) < max(SLACK, MIN_SIGMAS * error):
            return None
        logarithm = self.level + shift
        self.level = logarithm if abs(logarithm) >= SLACK else 0.0
        self.forget_sums()
        return math.exp(logarithm), start_step, abs(shift) / error

    def _estimate_noise(self) -> None:
        """The larger of what differs from step to step, and of slow changes around the level.

        The first hardly sees a drift that has begun; the second sees a subject that is never quiet.
        """
        values = [value for _, _, value in self._recent]
        pairs = zip(values, islice(values, 1, None), strict=False)
        differences = [abs(b - a) for a, b in pairs]
        if not differences:
            return
        least = UNKNOWN_NOISE if len(differences) < KNOWN_AFTER else LEAST_NOISE
        # A difference of two has the square root of two times the spread of one.
        fast = statistics.median(differences) / math.sqrt(2)
        # Not from the newest ones, where a drift may have begun.
        older = values[: NOISE_STEPS * 3 // 4] if len(values) == NOISE_STEPS else [0.0]
        slow = statistics.median(map(abs, older))
        self.noise = max(DEVIATION_OVER_MAD * max(fast, slow), least)
