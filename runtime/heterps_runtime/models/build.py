"""Builds a model from the source that its profile names: a factory, or a Hugging Face config."""

from __future__ import annotations

import difflib
import importlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from heterps_configs.documents.base import Dtype, parameter_format
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.huggingface.library import one_line
from heterps_runtime.huggingface.module import build_huggingface
from heterps_runtime.models.trust import UntrustedCodeError, check_trusted, is_shipped

if TYPE_CHECKING:
    from torch import Tensor, nn


# Models of a running program, which nobody else can import.
_numbers = itertools.count()
_REGISTERED: dict[str, Callable[[], nn.Module]] = {}
_TAKES_NAMES: set[str | None] = set()
# Building changes what all threads share: torch's default format, how modules take parameters.
_ONE_AT_A_TIME = threading.RLock()


def register_factory(factory: Callable[[], nn.Module], *, takes_names: bool = False) -> str:
    """Makes a callable known in this process; returns what a source's `factory` is then.

    Args:
        factory: Returns a new module.
        takes_names: Whether `forward` is called with inputs by name.
    """
    name = f"{getattr(factory, '__qualname__', 'model')}#{next(_numbers)}"
    _REGISTERED[name] = factory
    if takes_names:
        _TAKES_NAMES.add(name)
    return name


def forget_factory(name: str) -> None:
    """Lets go of what `register_factory` made known."""
    _REGISTERED.pop(name, None)
    _TAKES_NAMES.discard(name)


def build_module(source: ModelSource, device: str = "meta", dtype: Dtype = "float32") -> nn.Module:
    """Builds the model, in training mode.

    Args:
        source: Where it comes from.
        device: `meta`: parameters have shapes and no memory, while buffers (rotary tables,
            position numbers, running statistics) hold their true values. Any other device: all is
            built there, with the library's own random initialisation.
        dtype: Of the job; parameters have its format.

    Raises:
        HeterpsError: The model cannot be built; names the factory or class and its exception.
    """
    import torch

    with _ONE_AT_A_TIME:
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, parameter_format(dtype)))
        try:
            is_meta = device == "meta"
            module = _built_without_memory(source) if is_meta else _build(source).to(device)
        finally:
            torch.set_default_dtype(before)
    return module.train()


class Arguments:
    """Puts a batch into the order of `forward`: Hugging Face by name, factories by order.

    Every pass of a first stage asks it, so it looks nothing up.

    Args:
        source: Names and order.
        dtype: Of the job; floating inputs are converted to the format of its parameters.
    """

    def __init__(self, source: ModelSource, dtype: Dtype = "float32") -> None:
        import torch

        target: torch.dtype = getattr(torch, parameter_format(dtype))
        self._formats = [
            (entry.name, None if entry.is_whole else target) for entry in source.inputs
        ]
        self._takes_names = source.kind == "huggingface" or source.factory in _TAKES_NAMES

    def of(self, inputs: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Positional and keyword arguments; inputs by name, (B, ...)."""
        ordered = {}
        for name, target in self._formats:
            value = inputs[name]
            # A conversion into the same format would take longer than all the rest.
            is_right = target is None or value.dtype == target
            ordered[name] = value if is_right else value.to(target)
        return ((), ordered) if self._takes_names else (tuple(ordered.values()), {})


def arguments(
    source: ModelSource, inputs: dict[str, Tensor], dtype: Dtype = "float32"
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """See `Arguments`."""
    return Arguments(source, dtype).of(inputs)


def meta_inputs(source: ModelSource, batch_size: int) -> dict[str, Tensor]:
    """Inputs of `batch_size` samples without data."""
    import torch

    return {
        entry.name: torch.empty(
            (batch_size, *entry.shape), dtype=getattr(torch, entry.dtype), device="meta"
        )
        for entry in source.inputs
    }


def _build(source: ModelSource) -> nn.Module:
    if source.kind == "factory":
        return _call_factory(source.factory or "")
    return build_huggingface(source)


def _call_factory(factory: str) -> nn.Module:
    from torch import nn

    function = _REGISTERED.get(factory)
    if function is None:
        check_trusted(factory)
        function = imported(factory)
    try:
        module = function()
    except Exception as error:
        raise HeterpsError(f"{factory} raised {one_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise HeterpsError(
            f"{factory} returned {type(module).__name__}, expected a torch.nn.Module"
        )
    return module


def imported(factory: str) -> Callable[[], Any]:
    """The function that `package.module:function` names, which somebody has agreed to run.

    Raises:
        HeterpsError: It cannot be imported, or is no function.
    """
    module_name, _, attribute = factory.partition(":")
    if not is_shipped(factory) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        container = importlib.import_module(module_name)
    except Exception as error:
        raise HeterpsError(f"{factory}: cannot import {module_name}: {one_line(error)}") from error
    function: Any = container
    for part in attribute.split("."):
        if not hasattr(function, part):
            near = difflib.get_close_matches(part, dir(function), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise HeterpsError(f"{factory}: {module_name} has no {attribute}{hint}")
        function = getattr(function, part)
    if not callable(function):
        raise HeterpsError(f"{factory}: is of type {type(function).__name__}, expected a function")
    found: Callable[[], Any] = function
    return found


def _built_without_memory(source: ModelSource) -> nn.Module:
    """Large memory that a constructor asks for is none; where it needs the values, it gets them."""
    from heterps_runtime.models.initialise import LargeOnMeta, is_without_memory

    with _parameters_on_meta():
        try:
            with LargeOnMeta():
                module = _build(source)
        except UntrustedCodeError:
            raise
        except HeterpsError:
            return _build(source)
        return _build(source) if is_without_memory(module) else module


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Every parameter goes to the meta device the moment a module registers it; buffers stay.

    Memory that a constructor asks for and never writes is never touched, so that a model of any
    size is built in the memory of one of its parameters.
    """
    from torch import nn
    from torch.utils.weak import WeakTensorKeyDictionary

    original, moved = nn.Module.register_parameter, WeakTensorKeyDictionary()

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            if param not in moved:
                moved[param] = nn.Parameter(param.detach().to("meta"), param.requires_grad)
            param = moved[param]
        original(self, name, param)

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]
