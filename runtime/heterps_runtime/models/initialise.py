"""Initial parameters as a function of their name and a seed alone: every split starts equal.

The initialisation itself is the library's: `_init_weights` of the surrounding Hugging Face model,
else `reset_parameters` of the module. It runs for one module at a time, with a generator seeded by
the module's path, while every other parameter is still on the meta device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from heterps_runtime.models.recording import canonical_names

# Numbers of a tensor that are not worth a value: of random ones or none, and of constants.
_MANY, _VERY_MANY = 2**20, 2**26
_ARBITRARY = (torch.empty, torch.rand, torch.randn)
_CONSTANT = (torch.zeros, torch.ones)
# What writes values into a tensor and returns it: on the meta device there is nothing to write, but
# torch works out shapes and formats again for each one, which is most of the time of a build.
_WRITERS = (Tensor.normal_, Tensor.uniform_, Tensor.zero_, Tensor.fill_)
# transformers wraps the functions of torch; their names end alike.
_INITIALISING_MODULES = ("torch.nn.init", "transformers.initialization")

DEFAULT_STD = 0.02


def initial_values(module: nn.Module, names: Collection[str], seed: int) -> dict[str, Tensor]:
    """Values of some parameters of a module whose parameters are all on the meta device.

    Args:
        module: From `build_module(source)`; unchanged afterwards.
        names: Canonical names (a tied parameter has its first name).
        seed: Of the whole model.

    Returns:
        A CPU tensor for each name.
    """
    canonical = canonical_names(module)
    values: dict[str, Tensor] = {}
    for path in sorted({name.rpartition(".")[0] for name in names}):
        found = _values_of_module(module, path, canonical, seed)
        values.update((name, value) for name, value in found.items() if name in names)
    return values


def place(
    module: nn.Module, values: dict[str, Tensor], canonical: dict[int, str]
) -> dict[str, nn.Parameter]:
    """Replaces parameters by real ones wherever they are used.

    Args:
        module: Holds them on the meta device.
        values: By canonical name.
        canonical: `canonical_names(module)` from before.

    Returns:
        The new parameters by canonical name.
    """
    made: dict[str, nn.Parameter] = {}
    before = list(module.parameters())  # keeps their ids taken
    for part in module.modules():
        for attribute, parameter in list(part._parameters.items()):
            name = canonical.get(id(parameter))
            if parameter is None or name not in values:
                continue
            if name not in made:
                made[name] = nn.Parameter(values[name], requires_grad=parameter.requires_grad)
            setattr(part, attribute, made[name])
    del before
    return made


def _values_of_module(
    module: nn.Module, path: str, canonical: dict[int, str], seed: int
) -> dict[str, Tensor]:
    """Values of the parameters that the module at `path` holds itself and first."""
    part = module.get_submodule(path)
    prefix = f"{path}." if path else ""
    before = {
        attribute: parameter
        for attribute, parameter in part._parameters.items()
        if parameter is not None and canonical[id(parameter)] == prefix + attribute
    }
    for attribute, parameter in before.items():
        blank = torch.full(parameter.shape, torch.nan, dtype=parameter.dtype)
        setattr(part, attribute, nn.Parameter(blank))
    digest = hashlib.sha256(f"{seed}:{path}".encode()).digest()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        # `torch.manual_seed` would remember each for GPUs, with its stack: a third of a build.
        torch.default_generator.manual_seed(int.from_bytes(digest[:7], "big"))
        _run_library(module, path, part)
        for attribute in before:
            _fill_if_blank(attribute, part._parameters[attribute])
    values = {}
    for attribute, parameter in before.items():
        made = part._parameters[attribute]
        assert made is not None
        values[prefix + attribute] = made.detach()
        setattr(part, attribute, parameter)
    return values


def _run_library(module: nn.Module, path: str, part: nn.Module) -> None:
    for depth in range(path.count(".") + 1 if path else 0, -1, -1):
        ancestor = module.get_submodule(".".join(path.split(".")[:depth]))
        if callable(getattr(ancestor, "_init_weights", None)):
            ancestor._init_weights(part)  # type: ignore[operator]
            break
    is_blank = any(p is not None and _is_blank(p) for p in part._parameters.values())
    reset = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))
    if is_blank and callable(reset):
        reset()


def _fill_if_blank(attribute: str, parameter: Tensor | None) -> None:
    """What no library initialises: scales 1, biases 0, everything else normal."""
    if parameter is None or not _is_blank(parameter):
        return
    if parameter.ndim == 1 and "weight" in attribute:
        parameter.fill_(1.0)
    elif "bias" in attribute:
        parameter.zero_()
    else:
        parameter.normal_(0.0, DEFAULT_STD)


def _is_blank(parameter: Tensor) -> bool:
    return not parameter.is_meta and bool(parameter.isnan().any())


class LargeOnMeta(TorchFunctionMode):
    """Large tensors that a constructor makes have shapes and no memory; nobody fills them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_writer(func):
            written = args[0] if args else kwargs.get("tensor")
            if isinstance(written, Tensor) and written.is_meta:
                return written
        if func in _ARBITRARY or func in _CONSTANT:
            most = _MANY if func in _ARBITRARY else _VERY_MANY
            sizes = tree_leaves((args, kwargs.get("size")))
            is_here = kwargs.get("device") is None or torch.device(kwargs["device"]).type == "cpu"
            numbers = [size for size in sizes if isinstance(size, int)]
            if is_here and numbers and prod(numbers) >= most:
                kwargs = {**kwargs, "device": "meta", "pin_memory": False}
        return func(*args, **kwargs)


def _is_writer(func: Any) -> bool:
    if getattr(func, "__module__", None) in _INITIALISING_MODULES:
        return bool(func.__name__.endswith("_"))
    return func in _WRITERS


def is_without_memory(module: nn.Module) -> bool:
    """Whether a tensor that is no parameter has lost its values."""
    attributes = (value for part in module.modules() for value in vars(part).values())
    return any(
        isinstance(tensor, Tensor) and tensor.is_meta for tensor in (*module.buffers(), *attributes)
    )
