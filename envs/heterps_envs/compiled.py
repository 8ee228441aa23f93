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

# Options of kernels: of those whose errors are Python's, as that of a division by zero, and of all
# others. Nobody calls them from C, and each wrapper that is not made is a part of the compilation,
# for which the first command on a machine waits.
CHECKED: dict[str, Any] = {"cache": True, "no_cfunc_wrapper": True}
KERNEL: dict[str, Any] = {**CHECKED, "error_model": "numpy"}
# Of those that take arrays and make none. The last word is numba's own, which its documentation
# does not have.
BORROWING: dict[str, Any] = {**KERNEL, "_nrt": False}
# What such a kernel calls that does make arrays.
ALLOCATING: dict[str, Any] = {**BORROWING, "_nrt": True}
# Beside these, of what only kernels call: a call from Python would end the process.
HELPER: dict[str, Any] = {"no_cpython_wrapper": True}


def checked(function: Kernel) -> Kernel:
    """Compiles a kernel whose errors are Python's."""
    return _compiled(function, CHECKED)


def checked_helper(function: Kernel) -> Kernel:
    """As `checked`, where only kernels call it."""
    return _compiled(function, {**CHECKED, **HELPER})


def kernel(function: Kernel) -> Kernel:
    """Compiles a kernel that divides by zero as NumPy does."""
    return _compiled(function, KERNEL)


def helper(function: Kernel) -> Kernel:
    """As `kernel`, where only kernels call it."""
    return _compiled(function, {**KERNEL, **HELPER})


def uncounted(function: Kernel) -> Kernel:
    """Compiles a kernel that makes no arrays; numba refuses one that does."""
    return _compiled(function, BORROWING)


def uncounted_helper(function: Kernel) -> Kernel:
    """As `uncounted`, where only kernels call it."""
    return _compiled(function, {**BORROWING, **HELPER})


def inlined(function: Kernel) -> Kernel:
    """As `uncounted`, part of what calls it: else large tuples are copied for each call."""
    return _compiled(function, {**BORROWING, "inline": "always"})


def merged(function: Kernel) -> Kernel:
    """As `inlined`, by LLVM: for what is large, it takes less time to compile."""
    return _compiled(function, {**BORROWING, "forceinline": True})


def _compiled(function: Kernel, options: dict[str, Any]) -> Kernel:
    compiled: Kernel = njit(**options)(function)
    return compiled
