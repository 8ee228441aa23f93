"""When a training run ends: its budgets of seconds and steps, and who asks it to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from heterps_configs.documents.training import TrainingConfig
from heterps_configs.interrupts import Terminated


class Clock:
    """Time and steps spent of a config's budgets.

    Args:
        config: Has the budgets.
        clock: What seconds are; `time.process_time` where other processes may take the cores.

    Attributes:
        steps: Decisions so far, earlier runs included.
        schedule_start_s: When the schedules of `between` began: what was imitated before them has
            its own, and takes nothing from theirs.
    """

    def __init__(
        self, config: TrainingConfig, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.config, self._clock = config, clock
        self.start()

    def start(self, spent_s: float = 0.0, steps: int = 0, schedule_start_s: float = 0.0) -> None:
        """Begins to count from what earlier runs have spent."""
        self._start, self.steps = self._clock() - spent_s, steps
        self.schedule_start_s = schedule_start_s

    def start_schedule(self) -> None:
        """What `between` gives begins now."""
        self.schedule_start_s = self.seconds

    @property
    def seconds(self) -> float:
        """Of training, earlier runs included."""
        return self._clock() - self._start

    @property
    def share(self) -> float:
        """Of the budget that is nearer to its end, 0 to 1."""
        return self._share_since(0.0)

    def _share_since(self, start_s: float) -> float:
        config, share = self.config, 0.0
        if config.budget_s is not None:
            left_s = config.budget_s - start_s
            share = (self.seconds - start_s) / left_s if left_s > 0 else 1.0
        if config.total_steps is not None:
            share = max(share, self.steps / config.total_steps)
        return min(1.0, share)

    @property
    def is_over(self) -> bool:
        """Nothing is left."""
        return self.share >= 1.0

    def between(self, start: float, end: float) -> float:
        """Linear from `start` to `end` over what the budget was when the schedules began."""
        return start + (end - start) * self._share_since(self.schedule_start_s)


class Interrupt:
    """Whether a run has been asked to stop.

    Attributes:
        cause: What asked first; None before. The run ends with its update. A second Ctrl-C ends it
            at once; a second SIGTERM does not: `timeout`, for one, sends two.
    """

    def __init__(self) -> None:
        self.cause: KeyboardInterrupt | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Takes Ctrl-C and SIGTERM as requests in the block. Outside the main thread: nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._on_signal) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.cause is None:
            self.cause = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
