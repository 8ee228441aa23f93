"""Types of the arrays that problems, searches and policies pass around."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Record = TypeVar("Record", bound=tuple[Any, ...])

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
# One placement, encoded (see `heterps_envs.closed_form.placement.encode`).
Code = NDArray[np.int32]


def contiguous(record: Record) -> Record:
    """A named tuple with its arrays, and those of tuples in it, in rows one after another.

    A kernel is compiled once for each order that its arrays come in; with one order it is once.
    """
    return type(record)._make(_contiguous(each) for each in record)  # type: ignore[attr-defined, no-any-return]


def _contiguous(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    return contiguous(value) if isinstance(value, tuple) and hasattr(value, "_make") else value
