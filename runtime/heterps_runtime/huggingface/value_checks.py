"""Checks of values in a model's code, while shapes alone are known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

# transformers' own switch; its checks compare, say, image tokens with patches of the image.
_SWITCH = "TRANSFORMERS_DISABLE_TORCH_CHECK"


@contextmanager
def without_value_checks() -> Iterator[None]:
    """Leaves out transformers' checks of values, and numbers in their messages.

    What flows is not touched: a model that decides by a value still fails on fake tensors.
    """
    before, original = os.environ.get(_SWITCH), Tensor.__format__

    def formatted(self: Tensor, specification: str) -> str:
        if isinstance(self, FakeTensor):
            return "a number"
        return str(original(self, specification))  # type: ignore[no-untyped-call]

    os.environ[_SWITCH] = "1"
    Tensor.__format__ = formatted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.__format__ = original  # type: ignore[method-assign]
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before
