"""torch's formats of numbers in JSON, for messages."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import PlainValidator
from pydantic_core import to_json

# Looked up and never asked of the module: it would import what a name stands for.
_BY_NAME = {
    str(found).removeprefix("torch."): found
    for found in vars(torch).values()
    if isinstance(found, torch.dtype)
}


def dtype_named(value: object) -> torch.dtype:
    """Torch's format of a name.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, torch.dtype):
        return value
    found = _BY_NAME.get(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("expected a dtype of torch, such as float32")
    return found


TorchDtype = Annotated[torch.dtype, PlainValidator(dtype_named)]


def as_json(value: object) -> bytes:
    """Plain values, named tuples and documents as JSON; a dtype by its name.

    Raises:
        ValueError: There is something else in it.
    """
    # (Types of named tuples, unlike those of documents, do not say how to write their fields.)
    return to_json(value, inf_nan_mode="constants", fallback=_name_of)


def _name_of(value: object) -> str:
    if not isinstance(value, torch.dtype):
        raise ValueError(f"a {type(value).__name__} cannot be sent")
    return str(value).removeprefix("torch.")
