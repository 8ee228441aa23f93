"""The log of a rank: what its process prints, with the time and the device's name before each line.

The process's own standard output and error become the file, so that nothing is lost: libraries
write into it as well (without a stamp), and Python's traceback of a crash stands there.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TextIO


def rank_log_path(directory: Path, rank: int | str) -> Path:
    """Where a rank of a run writes its log."""
    return directory / f"rank-{rank}.log"


def name_process(device: str) -> None:
    """Lists of processes (`ps`, `top`) show the device; the system cuts names at 15 letters."""
    own = Path("/proc/self/comm")
    if own.exists():
        own.write_text(f"heterps {device}"[:15])


def print_into_log(directory: Path, rank: int, device: str) -> TextIO:
    """From here on all that this process prints goes into its log.

    Args:
        directory: Run directory.
        rank: Of this process.
        device: Its name, which stands in every line.

    Returns:
        What was standard output: the way to the launcher.
    """
    name_process(device)
    sys.stdout.flush()
    sys.stderr.flush()
    launcher = os.fdopen(os.dup(1), "w")
    path = rank_log_path(directory, rank)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    sys.stdout = sys.stderr = StampedStream(2, device)
    faulthandler.enable()
    handler = logging.StreamHandler(sys.stderr)
    # Of this package, and of whatever else logs: warnings.
    logging.basicConfig(handlers=[handler], format="%(message)s", level=logging.WARNING)
    logging.getLogger("heterps_runtime").setLevel(logging.INFO)
    return launcher


class StampedStream(io.TextIOBase):
    """A text stream that begins every line with the time and a name.

    Args:
        descriptor: File descriptor that it writes to, at once.
        name: Of the device.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor, self._name = descriptor, name
        self._is_line_start = True

    def write(self, text: str) -> int:
        """Writes all of it."""
        now = datetime.now().isoformat(sep=" ", timespec="milliseconds")
        parts = []
        for line in text.splitlines(keepends=True):
            parts += [f"{now} {self._name}  {line}" if self._is_line_start else line]
            self._is_line_start = line.endswith(("\n", "\r"))
        data = "".join(parts).encode(errors="replace")
        while data:
            data = data[os.write(self._descriptor, data) :]
        return len(text)

    def fileno(self) -> int:
        """The descriptor of the file."""
        return self._descriptor

    def writable(self) -> bool:
        """Whether it can be written to: always."""
        return True
