"""Functions of torch that a model calls between its units: told apart, so that a cut may lie there.

A function counts from the moment that it is called with what a unit made, or with what another such
function made of that; masks and rotary tables follow from shapes alone, and every stage makes its
own. A pass that records and a pass that replays number the calls alike: by the unit call in front,
the name of the function, and how often it was called since.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._pytree import tree_leaves

_MARK = "_heterps_pass"


class FunctionKey(NamedTuple):
    """Which call of a function.

    Attributes:
        unit: Number of the unit call in front.
        name: Of the function.
        occurrence: 1 for its first call since.
    """

    unit: int
    name: str
    occurrence: int


class FunctionalCalls(TorchFunctionMode):
    """Active around one pass of a model; hands over the calls that depend on units.

    Attributes:
        is_inside: Whether a unit runs; what that calls is its own.
    """

    def __init__(self, handle: Callable[[FunctionKey, Any, Any, Any], Any]) -> None:
        super().__init__()
        self.is_inside = False
        self._handle = handle
        self.begin()

    def begin(self) -> None:
        """A new pass starts."""
        # What an earlier pass made is no longer known.
        self._token = object()
        self._unit, self._counts = -1, dict[str, int]()
        self._has_grad = torch.is_grad_enabled()

    def after_unit(self, number: int, output: Any) -> None:
        """A unit call is over."""
        self._unit, self._counts = number, {}
        self.mark(output)

    def mark(self, made: Any) -> None:
        """Functions of these tensors count from now on."""
        for leaf in (made,) if isinstance(made, Tensor) else tree_leaves(made):
            if isinstance(leaf, Tensor):
                setattr(leaf, _MARK, self._token)

    def pause(self) -> bool:
        """Leaves the mode for a unit, which needs not be watched; whether that was possible."""
        if _get_current_function_mode() is not self:  # type: ignore[no-untyped-call]
            return False
        self.__exit__(None, None, None)
        return True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Within `torch.autograd.Function` there are no gradients: no cut may lie there.
        is_own = self.is_inside or torch.is_grad_enabled() is not self._has_grad
        if is_own or not (self._depends(args) or self._depends(kwargs.values())):
            return func(*args, **kwargs)
        name = _name(func)
        occurrence = self._counts[name] = self._counts.get(name, 0) + 1
        return self._handle(FunctionKey(self._unit, name, occurrence), func, args, kwargs)

    def _depends(self, values: Any) -> bool:
        for value in values:
            if isinstance(value, Tensor):
                if getattr(value, _MARK, None) is self._token:
                    return True
            elif isinstance(value, list | tuple) and self._depends(value):
                return True
        return False


def _name(function: Any) -> str:
    name = str(getattr(function, "__name__", type(function).__name__))
    # The getter of an attribute has the name of the attribute.
    if name == "__get__":
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name
