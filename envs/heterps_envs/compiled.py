"""How kernels are compiled: by numba, without counting references to their arrays.

Numba counts the references to every array of a tuple whenever the tuple is passed on, to an
inlined function too. A kernel that is called a million times with fifty small arrays spends half of
its time on that or more. One that makes no array need not: its caller holds all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., object])

# A kernel is compiled once more for each Python number that is written into a call of it, or that
# a variable has at first which is passed to it later.
ZERO: Any = np.int64(0)
ONE: Any = np.int64(1)
MINUS_ONE: Any = np.int64(-1)
FALSE: Any = np.bool_(False)

# How kernels are compiled that take arrays and make none. The last word is numba's own, which its
# documentation does not have.
BORROWING: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}
# What such a kernel calls that does make arrays.
ALLOCATING: dict[str, Any] = {**BORROWING, "_nrt": True}


def uncounted(function: Kernel) -> Kernel:
    """Compiles a kernel that makes no arrays; numba refuses one that does."""
    compiled: Kernel = njit(**BORROWING)(function)
    return compiled


def inlined(function: Kernel) -> Kernel:
    """As `uncounted`, part of what calls it: else large tuples are copied for each call."""
    compiled: Kernel = njit(inline="always", **BORROWING)(function)
    return compiled
