"""Threads of BLAS: policies multiply small matrices, which more threads only slow down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import scipy.linalg.cython_blas as _compiled_code_multiplies_with_this  # noqa: F401
from threadpoolctl import ThreadpoolController


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """NumPy and compiled code multiply matrices with one thread inside the `with` block."""
    with _pools().limit(limits=1, user_api="blas"):
        yield


@cache
def _pools() -> ThreadpoolController:
    """The libraries that are loaded now; looking for them takes milliseconds, so only once."""
    return ThreadpoolController()
