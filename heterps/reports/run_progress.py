"""The progress of a run on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Self

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from heterps.reports.console import SparseLines, percent_text, remarks
from heterps_runtime.results.progress import StepProgress

# Steps whose pace says how long the rest will take.
NUM_PACED_STEPS = 20


class RunProgress:
    """Shows a run, as a context manager; to be called with every step.

    Args:
        title: What runs.
        num_steps: Of the whole training.
        batch_size: Samples of a step.
        is_quiet: Shows nothing where there is no terminal.
        console: By default that of remarks, stderr.
        clock: Seconds; another one in tests.
    """

    def __init__(
        self,
        title: str,
        num_steps: int,
        batch_size: int,
        *,
        is_quiet: bool = False,
        console: Console = remarks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._num_steps, self._batch_size = title, num_steps, batch_size
        self._is_quiet, self._console, self._clock = is_quiet, console, clock
        self._ends_s: deque[float] = deque(maxlen=NUM_PACED_STEPS + 1)
        self._lines = SparseLines(clock())
        self._bar: _Bar | None = None

    def __enter__(self) -> Self:
        """Shows the bar."""
        if self._console.is_terminal:
            self._bar = _Bar(self._title, self._num_steps, self._console)
            self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        """Takes it away."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: StepProgress, note: str = "") -> None:
        """Shows one more step, and a note beside its figures."""
        now_s = self._clock()
        self._ends_s.append(now_s)
        done = progress.step + 1
        left = self._left_text(self._num_steps - done)
        if self._bar is not None:
            self._bar.show(done, left, step_text(progress, self._batch_size, note))
            return
        if not self._is_quiet and self._lines.is_due(10 * done // self._num_steps, now_s):
            text = f"{self._title}: step {done}/{self._num_steps}  "
            text += step_text(progress, self._batch_size, note)
            self._console.print(f"{text}  {left}".rstrip(), soft_wrap=True)

    def _left_text(self, remaining: int) -> str:
        """How long it will take from here, at the pace of the last steps."""
        if remaining == 0 or len(self._ends_s) < 2:
            return ""
        pace_s = (self._ends_s[-1] - self._ends_s[0]) / (len(self._ends_s) - 1)
        seconds = round(pace_s * remaining)
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"


@contextlib.contextmanager
def shown_progress(
    title: str, first: str = "", console: Console = remarks
) -> Iterator[Callable[[int, int, str], None]]:
    """A bar while something is measured; gives what is to be called with (done, total, what).

    Args:
        title: What is measured.
        first: What it begins with, before the first call.
        console: By default that of remarks, stderr.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"{title}: {first}".removesuffix(": "), total=None)

        def show(done: int, total: int, text: str) -> None:
            name = f"{title}: {text}".removesuffix(": ")
            bar.update(task, completed=done, total=total, description=escape(name))

        yield show


def step_text(progress: StepProgress, batch_size: int, note: str = "") -> str:
    """Loss, speed, bubble (mean, and of the device that waits most), fullest device and a note."""
    measured = progress.measured
    parts = [f"loss {progress.loss:.4f}", f"{batch_size / measured.step_time_s:.4g} samples/s"]
    bubbles = measured.bubble_shares
    if bubbles:
        worst = max(bubbles, key=lambda device: bubbles[device])
        mean = sum(bubbles.values()) / len(bubbles)
        parts.append(f"bubble {percent_text(mean)} ({worst} {percent_text(bubbles[worst])})")
    shares = memory_shares(progress)
    if shares:
        fullest = max(shares, key=lambda device: shares[device])
        parts.append(f"memory {100 * shares[fullest]:.2g} % of {fullest}")
    return "  ".join([*parts, note] if note else parts)


def memory_shares(progress: StepProgress) -> dict[str, float]:
    """Measured peak of each device over what it has; empty until it is measured."""
    limits = progress.memory_limit_bytes
    measured = progress.measured.memory_bytes
    return {device: measured[device] / limits[device] for device in limits if device in measured}


class _Bar(Progress):
    """A bar, and under it a line of figures: together they are too long for one line."""

    def __init__(self, title: str, num_steps: int, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._figures = "starting workers"
        super().__init__(*columns, console=console, transient=True)
        self._task = self.add_task(title, total=num_steps, left="")

    def show(self, done: int, left: str, figures: str) -> None:
        """Takes what is shown from now on."""
        self._figures = figures
        self.update(self._task, completed=done, left=left)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bar's two lines."""
        yield self.make_tasks_table(self.tasks)
        yield Text(f"  {self._figures}", no_wrap=True, overflow="ellipsis")
