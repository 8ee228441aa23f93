"""The host's memory allocator: processes keep what they free, and take it again within a step."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

# Numbers of <malloc.h>, and values that glibc takes for "as much as possible".
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_TRIM_THRESHOLD, _LARGEST_MMAP_THRESHOLD = 2**31 - 1, 32 * 2**20


def keep_freed_memory() -> None:
    """Lets this process keep host memory that it frees, where the C library is glibc.

    By default glibc gives large blocks back to the system, which hands out zeroed pages anew: with
    activations that come and go, single forward passes then take up to a third longer. Workers and
    the profiler do this alike, so that one predicts the other.
    """
    set_option = _of_glibc("mallopt")
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        set_option(_M_TRIM_THRESHOLD, _LARGEST_TRIM_THRESHOLD)


def return_freed_memory() -> None:
    """Gives back what is free now, once: after work that took far more than a step does.

    A few milliseconds. Without it copies that a save makes beside the passes leave holes that fit
    no later copy, and a rank grows by tens of MiB over its first hundreds of steps.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)
