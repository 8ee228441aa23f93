"""Ends that a user or a batch system asks for: Ctrl-C, and SIGTERM, which ends as Ctrl-C does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came, with which a batch system ends a job."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """In the block, of the main thread, SIGTERM raises `Terminated`."""
    before = signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    raise Terminated


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Of a process that an interrupt has ended, as shells have it: 128 and the signal's number."""
    return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)
