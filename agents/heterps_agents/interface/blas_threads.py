"""Threads of BLAS: policies multiply small matrices, which more threads only slow down."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

import scipy
from threadpoolctl import ThreadpoolController

# Compiled code multiplies with this. All of `scipy.linalg` would take a tenth of a second.
_BLAS = "scipy.linalg.cython_blas"


def _load_blas() -> None:
    """Loads the one extension module, without the package that it lies in."""
    if _BLAS in sys.modules:
        return
    spec = PathFinder.find_spec(_BLAS, [f"{folder}/linalg" for folder in scipy.__path__])
    assert spec is not None, "SciPy has no BLAS"
    assert spec.loader is not None, "SciPy has no BLAS"
    sys.modules[_BLAS] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


_load_blas()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """NumPy and compiled code multiply matrices with one thread inside the `with` block."""
    with _pools().limit(limits=1, user_api="blas"):
        yield


@cache
def _pools() -> ThreadpoolController:
    """The libraries that are loaded now; looking for them takes milliseconds, so only once."""
    return ThreadpoolController()
