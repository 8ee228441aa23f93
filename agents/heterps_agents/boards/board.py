"""TensorBoard files that never end what they tell of, be the disk full. Imports torch.

torch's own writer fails in a thread of its own, and with that at a later step. This one writes at
once; after its first error it says so in a warning and takes no more.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from heterps_agents.boards.event_file import EventFile

with warnings.catch_warnings():
    # TensorBoard's protobuf stubs warn about their own deprecations.
    warnings.simplefilter("ignore")
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams
    from torch.utils.tensorboard.writer import FileWriter

from heterps_agents.boards.curves import Point, held
from heterps_agents.boards.layout import Layout
from heterps_configs.units import escaped

Setting = bool | str | float | int


class Board(SummaryWriter):
    """One TensorBoard run.

    Tags begin with a group: `compare/`, `train/` and `run/` hold the few charts that a person looks
    at first, `compare_...`, `train_...` and `run_...` the details, which TensorBoard shows below.

    Args:
        folder: Of the run; made if it does not exist.
        purge_step: What another event file of the folder says of this step and later ones is done
            once more.
        replaces: Remove event files that are there.
    """

    # For torch these are None at first.
    file_writer: Any
    all_writers: Any

    def __init__(
        self, folder: str | os.PathLike[str], purge_step: int | None = None, replaces: bool = False
    ) -> None:
        self._events = EventFile(Path(folder), replaces)
        super().__init__(os.fspath(folder), purge_step=purge_step)

    def _get_file_writer(self) -> Any:
        """What torch asks for before each event, and makes anew after the end."""
        if self.file_writer is None:
            self.file_writer = _Writer(self._events)
            self.all_writers = {self.log_dir: self.file_writer}
            step, self.purge_step = self.purge_step, None
            if step is not None:
                start = SessionLog(status=SessionLog.START)
                self.file_writer.add_event(Event(step=step, session_log=start))
        return self.file_writer

    def add_text(self, tag: str, text_string: str, *when: Any, **more: Any) -> None:
        """torch's, for texts out of files: their control characters are escaped."""
        super().add_text(escaped(tag), escaped(text_string), *when, **more)

    def add_held(self, tag: str, points: Iterable[Point], end: int) -> None:
        """Adds a value that holds until the next one, so that it reads so under any smoothing.

        Args:
            tag: Of the curve.
            points: Microseconds, which become the steps, and the value from there on; rising.
            end: Microseconds to which the last value holds.
        """
        for step, value in held(points, end):
            # As "relative" time it reads in seconds.
            self.add_scalar(tag, value, step, walltime=step / 1e6)

    def add_results(
        self, settings: Mapping[str, Setting], results: Mapping[str, float | None], step: int
    ) -> None:
        """Adds a row to TensorBoard's table of runs.

        `add_hparams` would open a run of its own; its parts go into this one.

        Args:
            settings: Few: TensorBoard shows five columns unasked, by the alphabet.
            results: By tag; those that are unknown are left out.
            step: Of the run's end.
        """
        known = {
            tag: value
            for tag, value in results.items()
            if value is not None and math.isfinite(value)
        }
        for tag, value in known.items():
            self.add_scalar(tag, value, step)
        for summary in hparams(dict(settings), known):  # type: ignore[no-untyped-call]
            self._get_file_writer().add_summary(summary)

    def add_layout(self, layout: Layout) -> None:
        """Adds charts of several curves each, on TensorBoard's page Custom Scalars."""
        self.add_custom_scalars(
            {
                layout.title: {
                    chart.title: ["Multiline", list(chart.tags)] for chart in layout.charts
                }
            }
        )


class _Writer(FileWriter):
    """torch's writer of events, onto our file."""

    def __init__(self, events: EventFile) -> None:
        self.event_writer = events
