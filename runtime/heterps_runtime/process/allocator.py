"""The host's memory allocator: processes keep what they free, and take it again within a step."""

from __future__ import annotations

import ctypes
import sys

# Numbers of <malloc.h>, and values that glibc takes for "as much as possible".
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_TRIM_THRESHOLD, _LARGEST_MMAP_THRESHOLD = 2**31 - 1, 32 * 2**20


def keep_freed_memory() -> None:
    """Lets this process keep host memory that it frees, where the C library is glibc.

    By default glibc gives large blocks back to the system, which hands out zeroed pages anew: with
    activations that come and go, single forward passes then take up to a third longer. Workers and
    the profiler do this alike, so that one predicts the other.
    """
    if not sys.platform.startswith("linux"):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        set_option(_M_TRIM_THRESHOLD, _LARGEST_TRIM_THRESHOLD)
