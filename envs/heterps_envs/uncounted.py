"""Compiled functions that count no references.

Numba counts the references to every array of a tuple whenever the tuple is passed on. A kernel that
is called a million times with fifty small arrays spends half of its time on that. One that makes no
array need not: its caller holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., object])

# The last one is numba's own word for it, which its documentation does not have.
_OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}


def uncounted(function: Kernel) -> Kernel:
    """Compiles a kernel that makes no arrays; numba refuses one that does."""
    compiled: Kernel = njit(**_OPTIONS)(function)
    return compiled
