"""When a kept kernel is too old: when anything that it was compiled from has changed.

numba looks at the file alone that a kernel is in. What the kernel calls, and the constants that it
reads, are compiled into it too: after a change of those, in a checkout that is installed in place,
it would go on with the old code. And of a named tuple that a kernel takes numba looks at the class
and the types of its fields, and not at their names: one that has them in another order would be
read as before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.types import BaseTuple

_CONSTANTS = (bool, int, float, str, tuple, np.generic, np.ndarray)


class KernelCache(FunctionCache):
    """Keeps a kernel until a file or a constant changes that its code comes from."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As numba's. The stamp is taken now: a kernel may call what its module has below it."""
        self._cache_file._source_stamp = stamp(self._py_func)
        return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """As numba's, and the names of the fields of named tuples."""
        key = super()._index_key(sig, codegen)  # type: ignore[no-untyped-call]
        return *key, tuple(_fields(sig))


def stamp(function: Callable[..., object]) -> str:
    """Hash of the files of a kernel and of all kernels that it calls, and of their constants."""
    parts, done, waiting = set[str](), set[Any](), [function]
    while waiting:
        function = waiting.pop()
        if function not in done:
            done.add(function)
            own, called = _described(function)
            parts |= own
            waiting += called
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


@cache
def _described(function: Any) -> tuple[frozenset[str], tuple[Any, ...]]:
    """A kernel's file and constants, and what it calls."""
    code, known = function.__code__, function.__globals__
    parts, called = {_file_hash(code.co_filename)}, []
    for name in _names(code):
        value = known.get(name)
        if isinstance(value, Dispatcher):
            called.append(value.py_func)
        elif isinstance(value, _CONSTANTS):
            parts.add(f"{name} {_text(value)}")
        elif isinstance(value, type) and issubclass(value, tuple):
            parts.add(f"{name} {getattr(value, '_fields', ())}")
    return frozenset(parts), tuple(called)


def _fields(kinds: Any) -> Iterator[tuple[str, ...]]:
    """Names of the fields of all named tuples among types, and in these."""
    for kind in kinds:
        if isinstance(kind, BaseTuple):
            yield getattr(kind, "fields", ())
            yield from _fields(getattr(kind, "types", ()))


def _names(code: CodeType) -> Iterator[str]:
    """Names that a function looks up; those of comprehensions in it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _text(value: object) -> str:
    return f"{value.dtype} {value.tolist()}" if isinstance(value, np.ndarray) else repr(value)


@cache
def _file_hash(file: str) -> str:
    """Of a source file; of its name where there is none, as for code in an archive."""
    path = Path(file)
    return hashlib.sha256(path.read_bytes() if path.is_file() else file.encode()).hexdigest()
