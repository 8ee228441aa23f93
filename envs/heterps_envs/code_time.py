"""Seconds that kernels take to be loaded, or compiled: no part of what is done with them."""

from __future__ import annotations

import time
from typing import NamedTuple

from numba.core import event

# Numba holds this lock while it loads or compiles a kernel, with all that the kernel calls.
_KIND = "numba:compiler_lock"


class CodeTime(NamedTuple):
    """Seconds of this process so far.

    Attributes:
        wall_s: By the clock on the wall.
        cpu_s: Of processors.
    """

    wall_s: float
    cpu_s: float


class _Sum(event.Listener):
    """Adds up what lies between a begin and its end, those within others left out."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0
        self._depth = 0
        self._begun = CodeTime(0.0, 0.0)

    def on_start(self, event: event.Event) -> None:
        if self._depth == 0:
            self._begun = CodeTime(time.perf_counter(), time.process_time())
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.wall_s += time.perf_counter() - self._begun.wall_s
            self.cpu_s += time.process_time() - self._begun.cpu_s


_sum = _Sum()
event.register(_KIND, _sum)  # type: ignore[no-untyped-call]


def code_time() -> CodeTime:
    """What kernels have taken since this module was imported."""
    return CodeTime(_sum.wall_s, _sum.cpu_s)
