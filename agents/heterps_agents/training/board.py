"""TensorBoard files that never end what they tell of, be the disk full. Imports torch.

torch's own writer fails in a thread of its own, and with that at a later step. This one writes at
once; after its first error it says so in a warning and takes no more.
"""

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
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.writer import FileWriter

from heterps_configs.units import escaped

EVENT_FILES = "events.out.tfevents.*"
# Who watches sees a step after so long at the latest.
FLUSH_S = 5.0
_numbers = itertools.count()


class Board(SummaryWriter):
    """One TensorBoard run.

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
        self._events = _EventFile(Path(folder), replaces)
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

    def add_summary(self, summary: Any) -> None:
        """Adds what torch's `hparams` makes."""
        self._get_file_writer().add_summary(summary)


class _Writer(FileWriter):
    """torch's writer of events, onto our file."""

    def __init__(self, events: _EventFile) -> None:
        self.event_writer = events


class _EventFile:
    """What torch takes for TensorBoard's `EventFileWriter`."""

    _file: IO[bytes] | None

    def __init__(self, folder: Path, replaces: bool) -> None:
        self._folder, self._file, self._flushed_s = folder, None, time.monotonic()
        name = EVENT_FILES[:-1] + f"{time.time():010.0f}.{platform.node()}.{os.getpid()}"
        self._path = folder / f"{name}.{next(_numbers):06d}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for stale in folder.glob(EVENT_FILES) if replaces else ():
                stale.unlink()
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
