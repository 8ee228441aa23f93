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

from heterps_envs.kernel_stamps import KernelCache

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
CHECKED: dict[str, Any] = {"no_cfunc_wrapper": True}
KERNEL: dict[str, Any] = {**CHECKED, "error_model": "numpy"}
# Of those that take arrays and make none. The last word is numba's own, which its documentation
# does not have.
BORROWING: dict[str, Any] = {**KERNEL, "_nrt": False}
# What such a kernel calls that does make arrays.
ALLOCATING: dict[str, Any] = {**BORROWING, "_nrt": True}
# Beside these, of what only kernels call: a call from Python would end the process.
HELPER: dict[str, Any] = {"no_cpython_wrapper": True}


def compiled(**options: Any) -> Callable[[Kernel], Kernel]:
    """Compiles a kernel with these options of numba, and keeps it."""

    def compile_it(function: Kernel) -> Kernel:
        dispatcher: Any = njit(**options)(function)
        # Where numba is told to compile nothing, this is the function itself.
        if dispatcher is not function:
            dispatcher._cache = KernelCache(function)  # type: ignore[no-untyped-call]
        made: Kernel = dispatcher
        return made

    return compile_it


def checked(function: Kernel) -> Kernel:
    """Compiles a kernel whose errors are Python's."""
    return compiled(**CHECKED)(function)


def checked_helper(function: Kernel) -> Kernel:
    """As `checked`, where only kernels call it."""
    return compiled(**CHECKED, **HELPER)(function)


def kernel(function: Kernel) -> Kernel:
    """Compiles a kernel that divides by zero as NumPy does."""
    return compiled(**KERNEL)(function)


def helper(function: Kernel) -> Kernel:
    """As `kernel`, where only kernels call it."""
    return compiled(**KERNEL, **HELPER)(function)


def uncounted(function: Kernel) -> Kernel:
    """Compiles a kernel that makes no arrays; numba refuses one that does."""
    return compiled(**BORROWING)(function)


def uncounted_helper(function: Kernel) -> Kernel:
    """As `uncounted`, where only kernels call it."""
    return compiled(**BORROWING, **HELPER)(function)


def allocating(function: Kernel) -> Kernel:
    """Compiles a kernel that makes arrays; kernels that make none may call it."""
    return compiled(**ALLOCATING)(function)


def allocating_helper(function: Kernel) -> Kernel:
    """As `allocating`, where only kernels call it."""
    return compiled(**ALLOCATING, **HELPER)(function)


def inlined(function: Kernel) -> Kernel:
    """As `uncounted`, part of what calls it: else large tuples are copied for each call."""
    return compiled(**BORROWING, inline="always")(function)


def merged(function: Kernel) -> Kernel:
    """As `inlined`, by LLVM: for what is large, it takes less time to compile."""
    return compiled(**BORROWING, forceinline=True)(function)
