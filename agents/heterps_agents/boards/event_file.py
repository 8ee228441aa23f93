"""A file of TensorBoard's events that is written at once, and ends at its first error."""

from __future__ import annotations

import itertools
import os
import platform
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

with warnings.catch_warnings():
    # TensorBoard's protobuf stubs warn about their own deprecations.
    warnings.simplefilter("ignore")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer import event_file_writer
    from tensorboard.summary.writer.record_writer import RecordWriter

EVENT_FILES = "events.out.tfevents.*"
# Who watches sees a step after so long at the latest.
FLUSH_S = 5.0
_numbers = itertools.count()


class EventFile:
    """What torch takes for TensorBoard's `EventFileWriter`.

    Args:
        folder: Of the run; made if it does not exist.
        replaces: Remove event files that are there.
    """

    _file: IO[bytes] | None

    def __init__(self, folder: Path, replaces: bool) -> None:
        self._folder, self._file, self._flushed_s = folder, None, time.monotonic()
        name = EVENT_FILES[:-1] + f"{time.time():010.0f}.{platform.node()}.{os.getpid()}"
        self._path = folder / f"{name}.{next(_numbers):06d}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for stale in folder.glob(EVENT_FILES) if replaces else ():
                stale.unlink()
            _announce(folder)
            self._open()
        except OSError as error:
            self._give_up(error)

    def _open(self) -> None:
        self._file = self._path.open("ab", buffering=1 << 16)
        self._records = RecordWriter(self._file)
        self.add_event(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def get_logdir(self) -> str:
        """The folder."""
        return str(self._folder)

    def add_event(self, event: Any) -> None:
        """Writes an event, or nothing after an error."""
        if self._file is None:
            return
        try:
            self._records.write(event.SerializeToString())
            if time.monotonic() - self._flushed_s >= FLUSH_S:
                self.flush()
        except OSError as error:
            self._give_up(error)

    def flush(self) -> None:
        """Lets readers see what was written."""
        if self._file is None:
            return
        try:
            self._file.flush()
            self._flushed_s = time.monotonic()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Ends the file."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            self._give_up(error)

    def reopen(self) -> None:
        """Of a file that torch thinks closed: never called by our writers."""

    def _give_up(self, error: OSError) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # its buffer cannot be written, either
                file.close()
        warnings.warn(
            f"TensorBoard: {self._folder} cannot be written ({error.strerror}): it ends here, and "
            "all else goes on",
            stacklevel=2,
        )


def _announce(folder: Path) -> None:
    """Tells of a folder who replaced TensorBoard's writer to hear of it, as Weights & Biases does.

    One of their writers is made, and its empty file removed: ours is the file to be read.
    """
    writer = event_file_writer.EventFileWriter
    if writer.__module__ == event_file_writer.__name__:
        return
    before = set(folder.glob(EVENT_FILES))
    writer(str(folder)).close()
    for empty in set(folder.glob(EVENT_FILES)) - before:
        empty.unlink()
