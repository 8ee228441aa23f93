"""A user's own model and batches, in the words that stages and plans use."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import get_args

from torch import Tensor, nn

from heterps_configs.arguments import check_type
from heterps_configs.documents.model.source import InputDtype, InputSpecification, ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.models.build import register_factory

Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
_SOME_TENSORS = "a tensor, a sequence or a mapping of tensors"
_DTYPES = {f"torch.{name}": name for name in get_args(InputDtype)}


def named_inputs(inputs: Inputs) -> dict[str, Tensor]:
    """Inputs by name: of a mapping its own, else `x0`, `x1` and so on.

    Raises:
        HeterpsError: Something else than tensors with one batch dimension of equal length.
    """
    check_type("inputs", inputs, (Tensor, Sequence, Mapping), _SOME_TENSORS)
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    named = dict(inputs) if isinstance(inputs, Mapping) else {}
    if not isinstance(inputs, Mapping):
        named = {f"x{index}": tensor for index, tensor in enumerate(inputs)}
    for name, tensor in named.items():
        check_type("name of an input", name, str, "a string")
        if not isinstance(tensor, Tensor) or tensor.ndim == 0:
            raise HeterpsError(
                f"input {name}: is no tensor with a batch dimension but {type(tensor).__name__}; "
                f"allowed: {_SOME_TENSORS}"
            )
    if len({len(tensor) for tensor in named.values()}) != 1:
        sizes = ", ".join(f"{name} {len(tensor)}" for name, tensor in named.items())
        raise HeterpsError(f"inputs: need the same number of samples each, found: {sizes or '-'}")
    return named


def source_of(
    model: nn.Module | Callable[[], nn.Module], inputs: Inputs, target: Tensor
) -> ModelSource:
    """How to build the model again in this process, and what it takes.

    Args:
        model: A factory, called again for each stage, or a module, which is copied.
        inputs: A batch; a mapping goes to `forward` by name, all else in order.
        target: The batch's target.

    Raises:
        HeterpsError: Tensors of an unknown format.
    """
    factory = copies_of(model) if isinstance(model, nn.Module) else model
    check_type("target", target, Tensor, "a tensor with as many samples as the inputs")
    is_floating = target.dtype.is_floating_point
    return ModelSource(
        kind="factory",
        factory=register_factory(factory, takes_names=isinstance(inputs, Mapping)),
        inputs=tuple(_described(name, tensor) for name, tensor in named_inputs(inputs).items()),
        # Only the costs of the last layer depend on it: the user's loss is computed.
        target=_described("target", target.float() if is_floating else target.long()),
        loss="mean_squared_error" if is_floating else "cross_entropy",
    )


def _described(name: str, tensor: Tensor) -> InputSpecification:
    dtype = _DTYPES.get(str(tensor.dtype))
    if dtype is None:
        raise HeterpsError(f"input {name}: is {tensor.dtype}; allowed: {', '.join(_DTYPES)}")
    # The range of values plays no part: data is the user's.
    return InputSpecification.model_validate(
        {
            "name": name,
            "shape": tuple(tensor.shape[1:]),
            "dtype": dtype,
            "num_classes": None if tensor.dtype.is_floating_point else 2,
        }
    )


def copies_of(model: nn.Module) -> Callable[[], nn.Module]:
    """A factory of copies that share no buffer and have parameters without memory."""

    def copied() -> nn.Module:
        without_memory: dict[int, object] = {
            id(parameter): nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
            for parameter in model.parameters()
        }
        return copy.deepcopy(model, without_memory)

    return copied


class ModuleValues:
    """The values that a given module has (`heterps_runtime.stages.start_values.StartValues`).

    Args:
        model: The user's module.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def parameters(self, module: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
        """Copies of some parameters."""
        own = dict(self._model.named_parameters())
        return {name: own[name].detach().clone() for name in names}

    def fill(self, buffers: Mapping[str, Tensor]) -> None:
        """They were copied with the module."""

    def remarks(self) -> list[str]:
        """There are none."""
        return []
