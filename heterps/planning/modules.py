"""The profile of a module that a program has at hand: no file to read. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heterps_configs.arguments import check_callable
from heterps_configs.documents.base import Dtype, parameter_format
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_runtime.models.build import forget_factory
from heterps_runtime.own_loop.model import Inputs, copies_of, named_inputs, source_of
from heterps_runtime.profiling.model_source import target_of_output
from heterps_runtime.tracing.trace import trace_source


@dataclass(frozen=True)
class Example:
    """A batch that shows what a module takes. Only shapes and formats count; nothing is computed.

    Attributes:
        inputs: A tensor, several in the order of `forward`, or a mapping that goes to `forward` by
            name. The first dimension is the batch.
        target: What the loss compares the output with. None: classes where the output's last
            dimension is above 1, else a number.
    """

    inputs: Inputs
    target: Tensor | None = None


def module_profile(
    model: nn.Module | Callable[[], nn.Module],
    example: Inputs | Example | None,
    dtype: Dtype | None = None,
) -> ModelProfile:
    """Traces a module without computing anything; its own parameters stay as they are.

    Args:
        model: A module, or what returns one.
        example: A batch of inputs, with or without its target.
        dtype: Of the job; by default that of the module's parameters, else float32.

    Returns:
        The profile. It does not say how the model is built: no other program could.

    Raises:
        HeterpsError: No example, or the module cannot be traced with them.
    """
    check_callable(
        "model", model, "a name or a file, a torch.nn.Module, or a function that returns one"
    )
    if example is None:
        raise HeterpsError(
            "a module needs an example, a batch of what its forward takes: "
            "load_problem(module, cluster, example=torch.zeros(1, 32))"
        )
    if not isinstance(example, Example):
        example = Example(example)
    name = type(model).__name__ if isinstance(model, nn.Module) else _name_of(model)
    dtype = dtype or _own_format(model)
    factory = model
    if isinstance(model, nn.Module):
        number_format = getattr(torch, parameter_format(dtype))
        factory = _in_format(model, number_format)
    # The loss matters for the last layer alone: any target will do until the output is known.
    any_target = next(iter(named_inputs(example.inputs).values()))
    source = source_of(
        factory, example.inputs, any_target if example.target is None else example.target
    )
    try:
        if example.target is None:
            found, loss = target_of_output(source)
            source = source.changed(target=found, loss=loss)
        return trace_source(source, name, dtype).changed(source=None)
    finally:
        forget_factory(source.factory or "")


def _in_format(model: nn.Module, target: torch.dtype) -> Callable[[], nn.Module]:
    """A factory of copies in the format of the job, as `build_module` expects them."""
    copied = copies_of(model)

    def made() -> nn.Module:
        return copied().to(target)

    made.__qualname__ = type(model).__name__
    return made


def _name_of(factory: Callable[[], nn.Module]) -> str:
    return getattr(factory, "__name__", type(factory).__name__).strip("<>")


def _own_format(model: nn.Module | Callable[[], nn.Module]) -> Dtype:
    formats: dict[str, Dtype] = {
        "torch.float32": "float32",
        "torch.bfloat16": "bfloat16",
        "torch.float16": "float16",
    }
    if isinstance(model, nn.Module):
        for parameter in model.parameters():
            if str(parameter.dtype) in formats:
                return formats[str(parameter.dtype)]
    return "float32"
