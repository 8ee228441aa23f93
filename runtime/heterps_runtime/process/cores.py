"""The processor cores of this machine that its processes may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Those that the affinity of this process leaves; all where the system knows no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
