"""What happens between PPO updates: clock, interrupts, curves, milestones, progress."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple, Protocol

from heterps_agents.evaluation import Gap


class Budgets(Protocol):
    """The part of a training config that says when to stop."""

    @property
    def budget_s(self) -> float | None:
        """Seconds of training."""

    @property
    def total_steps(self) -> int | None:
        """Environment steps."""


class TrainingProgress(NamedTuple):
    """Where a run stands.

    Attributes:
        share: Of the budget, 0 to 1.
        seconds: Of training.
        steps: Environment steps.
        episode_reward: Mean of recent episodes; nan before the first one ends.
        gap_median: Greedy decoding on the held-out set, at the last evaluation; nan before.
        gap_p95: The same.
        passes: Of imitation, before the first step.
        imitation_loss: Of the last pass; nan before the first.
    """

    share: float
    seconds: float
    steps: int
    episode_reward: float
    gap_median: float
    gap_p95: float
    passes: int
    imitation_loss: float


class Clock:
    """Time and steps spent of a config's budgets.

    Args:
        config: Has the budgets.
        spent_s: Seconds of earlier runs.
        clock: What seconds are; `time.process_time` where other processes may take the cores.
    """

    def __init__(
        self,
        config: Budgets,
        spent_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config, self.steps, self._clock = config, 0, clock
        self._start = clock() - spent_s

    @property
    def seconds(self) -> float:
        """Of training, earlier runs included."""
        return self._clock() - self._start

    @property
    def share(self) -> float:
        """Of the budget that is nearer to its end, 0 to 1."""
        config, share = self.config, 0.0
        if config.budget_s is not None:
            share = self.seconds / config.budget_s
        if config.total_steps is not None:
            share = max(share, self.steps / config.total_steps)
        return min(1.0, share)

    @property
    def is_over(self) -> bool:
        """Nothing is left."""
        return self.share >= 1.0

    def between(self, start: float, end: float) -> float:
        """Linear from `start` to `end` over the budget."""
        return start + (end - start) * self.share


class Interrupt:
    """Whether the user has asked to stop.

    Attributes:
        requested: Set by Ctrl-C; the run ends with its update. A second Ctrl-C ends it at once.
    """

    def __init__(self) -> None:
        self.requested = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Takes Ctrl-C as a request while the block runs. Outside the main thread: nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


# What a run is judged by: numbers of curves, and the limits that they must be below.
MILESTONES = {
    "greedy median 0": {("in-range/greedy", "median"): 1e-3},
    "beam 16 median 0, mean below 0.3 %, p95 below 0.2 %": {
        ("in-range/beam16", "median"): 1e-3,
        ("in-range/beam16", "mean"): 3e-3,
        ("in-range/beam16", "p95"): 2e-3,
    },
}


class Milestone(NamedTuple):
    """When a run first reached a goal: at an evaluation, so a little late."""

    steps: int
    cpu_s: float


def reached(
    gaps: Mapping[str, Gap], milestones: dict[str, Milestone], steps: int, cpu_s: float
) -> None:
    """Adds the milestones that an evaluation has reached for the first time.

    Args:
        gaps: By curve, see `heterps_agents.evaluation.TestSets`.
        milestones: Those reached before; added to.
        steps: Environment steps so far.
        cpu_s: Processor seconds of training so far, evaluations left out.
    """
    for name, goals in MILESTONES.items():
        met = all(
            curve in gaps and getattr(gaps[curve], field) < limit
            for (curve, field), limit in goals.items()
        )
        if met and name not in milestones:
            milestones[name] = Milestone(steps, round(cpu_s, 1))
