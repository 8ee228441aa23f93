"""From what a user writes for MODEL to a module and its profile.

MODEL is a shipped name, a profile file, a Hugging Face `config.json` (or its folder), or
`package.module:factory`. torch and transformers are imported only where a module is built.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_configs.document import Dtype, parameter_format, read_yaml
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_profile
from heterps_configs.model_profile import (
    InputSpecification,
    LossName,
    ModelProfile,
    ModelSource,
)
from heterps_runtime.huggingface import (
    build_huggingface,
    config_dtype,
    huggingface_source,
    one_line,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

_INPUT = re.compile(
    r"(?P<name>\w+)=(?P<shape>\d*(?:[,x]\d+)*):(?P<dtype>float32|int64)(?:<(?P<classes>\d+))?"
)


def resolve_profile(
    reference: str,
    inputs: Sequence[str] = (),
    *,
    sequence_length: int | None = None,
    dtype: Dtype | None = None,
) -> ModelProfile:
    """The profile of a MODEL; traces it where there is none yet.

    Args:
        reference: Shipped name, profile file, Hugging Face config file or folder, or
            `package.module:factory`.
        inputs: For a factory, `name=shape:dtype` for each input; see `parse_input`.
        sequence_length: Tokens of one sample, for language models.
        dtype: Format that the byte counts are for; None: what the config says, else float32.

    Raises:
        HeterpsError: Unknown name, broken file, or a model that cannot be built or traced.
    """
    if is_factory(reference):
        source = factory_source(reference, inputs)
    elif is_huggingface(reference):
        source = huggingface_source(_read_config(reference), sequence_length)
        if inputs:
            source = source.model_copy(update={"inputs": tuple(map(parse_input, inputs))})
        dtype = dtype or config_dtype(source.config or {})
    else:
        return load_profile(reference)
    from heterps_runtime.trace import trace_source

    return trace_source(source, name=reference, dtype=dtype or "float32")


def is_huggingface(reference: str) -> bool:
    """Whether a reference is a Hugging Face `config.json` or a folder that holds one.

    Raises:
        HeterpsError: A folder without `config.json`, or a JSON file that cannot be read.
    """
    path = Path(reference)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise HeterpsError(f"{reference}: the folder has no config.json")
        return True
    return path.suffix == ".json" and path.is_file() and "model_type" in _mapping(read_yaml(path))


def is_factory(reference: str) -> bool:
    """Whether a reference has the form `package.module:factory`."""
    return bool(re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", reference))


# Models of a running program, which nobody else can import.
_REGISTERED: dict[str, Callable[[], nn.Module]] = {}
_TAKES_NAMES: set[str | None] = set()


def register_factory(factory: Callable[[], nn.Module], *, takes_names: bool = False) -> str:
    """Makes a callable known in this process; returns what a source's `factory` is then.

    Args:
        factory: Returns a new module.
        takes_names: Whether `forward` is called with inputs by name.
    """
    name = f"{getattr(factory, '__qualname__', 'model')}#{len(_REGISTERED)}"
    _REGISTERED[name] = factory
    if takes_names:
        _TAKES_NAMES.add(name)
    return name


def parse_input(text: str) -> InputSpecification:
    """Reads `name=shape:dtype`, such as `x=3,32,32:float32` or `ids=128:int64<32000`.

    The shape is that of one sample, without the batch; whole numbers need `<N`, their upper limit.

    Raises:
        HeterpsError: It has another form.
    """
    match = _INPUT.fullmatch(text.replace(" ", ""))
    if match is None:
        raise HeterpsError(
            f"input {text!r}: expected name=shape:dtype with the shape of one sample and dtype "
            "float32 or int64<N, such as x=3,32,32:float32 or ids=128:int64<32000"
        )
    shape = tuple(int(size) for size in re.split("[,x]", match["shape"]) if size)
    if 0 in shape:
        raise HeterpsError(f"input {text!r}: a size is 0")
    is_integer, classes = match["dtype"] == "int64", match["classes"]
    if is_integer != (classes is not None) or classes == "0":
        raise HeterpsError(
            f"input {text!r}: int64 needs a limit (int64<32000 draws 0..31999), float32 has none"
        )
    return InputSpecification(
        name=match["name"],
        shape=shape,
        dtype="int64" if is_integer else "float32",
        num_classes=int(classes) if classes else None,
    )


def factory_source(factory: str, inputs: Sequence[str]) -> ModelSource:
    """Source of a `package.module:factory`; an input called `target` says what the loss compares.

    Without a `target`, it follows from the model's output: classes where the last dimension is
    above 1 (cross entropy), else a number (mean squared error).

    Raises:
        HeterpsError: No inputs, a malformed one, or a model that cannot be built or run.
    """
    parsed = tuple(map(parse_input, inputs))
    given = {entry.name: entry for entry in parsed}
    if len(given) < len(parsed):
        raise HeterpsError(f"{factory}: two inputs have the same name")
    target = given.pop("target", None)
    if not given:
        raise HeterpsError(f"{factory}: say what it takes, such as --input x=32:float32")
    source = ModelSource(kind="factory", factory=factory, inputs=tuple(given.values()))
    loss: LossName
    if target is None:
        target, loss = _target_of_output(source)
    else:
        loss = "cross_entropy" if target.dtype == "int64" else "mean_squared_error"
    return source.model_copy(update={"target": target, "loss": loss})


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

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, parameter_format(dtype)))
    try:
        if device == "meta":
            with _parameters_on_meta():
                module = _build(source)
        else:
            module = _build(source).to(device)
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
            (entry.name, target if entry.dtype == "float32" else None) for entry in source.inputs
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

    function = _REGISTERED.get(factory) or _imported(factory)
    try:
        module = function()
    except Exception as error:
        raise HeterpsError(f"{factory} raised {one_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise HeterpsError(
            f"{factory} returned {type(module).__name__}, expected a torch.nn.Module"
        )
    return module


def _imported(factory: str) -> Callable[[], Any]:
    module_name, _, attribute = factory.partition(":")
    if os.getcwd() not in sys.path:
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
        raise HeterpsError(f"{factory}: is not a function")
    found: Callable[[], Any] = function
    return found


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


def _target_of_output(source: ModelSource) -> tuple[InputSpecification, LossName]:
    from heterps_runtime.trace import record

    output = record(source, build_module(source), batch_size=2).output
    assert output is not None
    shape = output.shape[1:]
    if shape and shape[-1] > 1:
        classes = shape[-1]
        target = InputSpecification(
            name="target", shape=shape[:-1], dtype="int64", num_classes=classes
        )
        return target, "cross_entropy"
    return InputSpecification(name="target", shape=shape), "mean_squared_error"


def _read_config(reference: str) -> dict[str, Any]:
    path = Path(reference)
    config = _mapping(read_yaml(path / "config.json" if path.is_dir() else path))
    if "model_type" not in config:
        raise HeterpsError(f"{reference}: config.json has no model_type")
    return config


def _mapping(content: Any) -> dict[str, Any]:
    return content if isinstance(content, dict) else {}
