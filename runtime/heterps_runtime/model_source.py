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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_configs.document import Dtype, read_yaml
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_profile
from heterps_configs.model_profile import (
    InputSpecification,
    LossName,
    ModelProfile,
    ModelSource,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

DEFAULT_SEQUENCE_LENGTH = 512
DEFAULT_IMAGE_SIZE = 224

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
    elif _is_huggingface(reference):
        source = huggingface_source(_read_config(reference), sequence_length)
        if inputs:
            source = source.model_copy(update={"inputs": tuple(map(parse_input, inputs))})
        dtype = dtype or config_dtype(source.config or {})
    else:
        return load_profile(reference)
    from heterps_runtime.trace import trace_source

    return trace_source(source, name=reference, dtype=dtype or "float32")


def is_factory(reference: str) -> bool:
    """Whether a reference has the form `package.module:factory`."""
    return bool(re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", reference))


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


def huggingface_source(
    config: dict[str, Any], sequence_length: int | None = None, image_size: int | None = None
) -> ModelSource:
    """Source of a Hugging Face `config.json`, with default inputs and target.

    Args:
        config: Content of the file; `architectures` names the class, else the usual one of the type.
        sequence_length: Default: 512, or the longest that the model has positions for.
        image_size: Default: the config's, else 224.

    Raises:
        HeterpsError: transformers is missing, or it does not know the model.
    """
    built = _huggingface_config(config)
    architecture = (config.get("architectures") or [_default_architecture(built)])[0]
    inputs: tuple[InputSpecification, ...]
    main = getattr(_huggingface_class(architecture), "main_input_name", "input_ids")
    if main == "pixel_values":
        size = image_size or getattr(built, "image_size", None) or DEFAULT_IMAGE_SIZE
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(built, "num_channels", 3)
        inputs = (InputSpecification(name=main, shape=(channels, height, width)),)
    elif main == "input_ids":
        text = built.get_text_config()
        longest = getattr(text, "max_position_embeddings", None) or DEFAULT_SEQUENCE_LENGTH
        length = sequence_length or min(DEFAULT_SEQUENCE_LENGTH, longest)
        ids = InputSpecification(
            name=main, shape=(length,), dtype="int64", num_classes=text.vocab_size
        )
        inputs = (ids,)
        if getattr(built, "is_encoder_decoder", False):
            inputs += (ids.model_copy(update={"name": "decoder_input_ids"}),)
    else:
        raise HeterpsError(f"{architecture}: its input {main!r} has no default; give --input")
    source = ModelSource(
        kind="huggingface", config=config, architecture=architecture, inputs=inputs
    )
    target, loss = _target_of_architecture(source, built) or _target_of_output(source)
    return source.model_copy(update={"target": target, "loss": loss})


def config_dtype(config: dict[str, Any]) -> Dtype:
    """The dtype that a Hugging Face config names, else float32."""
    named = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    for dtype in ("bfloat16", "float16", "float32"):
        if named.removeprefix("torch.") == dtype:
            return dtype  # type: ignore[return-value]
    return "float32"


def build_module(source: ModelSource, device: str = "meta", dtype: Dtype = "float32") -> nn.Module:
    """Builds the model, in training mode.

    Args:
        source: Where it comes from.
        device: `meta`: parameters have shapes and no memory, while buffers (rotary tables,
            position numbers, running statistics) hold their true values. Any other device: all is
            built there, with the library's own random initialisation.
        dtype: Format of the parameters.

    Raises:
        HeterpsError: The model cannot be built; names the factory or class and its exception.
    """
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        if device == "meta":
            with _parameters_on_meta():
                module = _build(source)
        else:
            module = _build(source).to(device)
    finally:
        torch.set_default_dtype(before)
    return module.train()


def arguments(
    source: ModelSource, inputs: dict[str, Tensor]
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Positional and keyword arguments of `forward`: Hugging Face by name, factories by order."""
    ordered = {entry.name: inputs[entry.name] for entry in source.inputs}
    return ((), ordered) if source.kind == "huggingface" else (tuple(ordered.values()), {})


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
    assert source.config is not None and source.architecture is not None
    config = _huggingface_config(source.config)
    for part in (config, config.get_text_config()):
        part.use_cache = False
    try:
        module: nn.Module = _huggingface_class(source.architecture)(config)
    except Exception as error:
        raise HeterpsError(f"{source.architecture}: {_one_line(error)}") from error
    return module


def _call_factory(factory: str) -> nn.Module:
    from torch import nn

    module_name, _, attribute = factory.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        container = importlib.import_module(module_name)
    except Exception as error:
        raise HeterpsError(f"{factory}: cannot import {module_name}: {_one_line(error)}") from error
    function = container
    for part in attribute.split("."):
        if not hasattr(function, part):
            near = difflib.get_close_matches(part, dir(function), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise HeterpsError(f"{factory}: {module_name} has no {attribute}{hint}")
        function = getattr(function, part)
    if not callable(function):
        raise HeterpsError(f"{factory}: is not a function")
    try:
        module = function()
    except Exception as error:
        raise HeterpsError(f"{factory} raised {_one_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise HeterpsError(
            f"{factory} returned {type(module).__name__}, expected a torch.nn.Module"
        )
    return module


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

    shape = record(source, build_module(source), batch_size=2).output.shape[1:]
    if shape and shape[-1] > 1:
        classes = shape[-1]
        target = InputSpecification(
            name="target", shape=shape[:-1], dtype="int64", num_classes=classes
        )
        return target, "cross_entropy"
    return InputSpecification(name="target", shape=shape), "mean_squared_error"


def _target_of_architecture(
    source: ModelSource, config: Any
) -> tuple[InputSpecification, LossName] | None:
    architecture = source.architecture or ""
    if architecture.endswith(
        ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
    ):
        tokens = source.inputs[-1]
        return tokens.model_copy(update={"name": "labels"}), "cross_entropy"
    if architecture.endswith(("ForImageClassification", "ForSequenceClassification")):
        return (
            InputSpecification(name="labels", dtype="int64", num_classes=config.num_labels),
            "cross_entropy",
        )
    return None


def _is_huggingface(reference: str) -> bool:
    path = Path(reference)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise HeterpsError(f"{reference}: the folder has no config.json")
        return True
    return path.suffix == ".json" and path.is_file() and "model_type" in _mapping(read_yaml(path))


def _read_config(reference: str) -> dict[str, Any]:
    path = Path(reference)
    config = _mapping(read_yaml(path / "config.json" if path.is_dir() else path))
    if "model_type" not in config:
        raise HeterpsError(f"{reference}: config.json has no model_type")
    return config


def _mapping(content: Any) -> dict[str, Any]:
    return content if isinstance(content, dict) else {}


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise HeterpsError(
            "Hugging Face models need the transformers library: pip install 'heterps[hf]'"
        ) from None


def _huggingface_config(config: dict[str, Any]) -> Any:
    transformers = _transformers()
    content = {key: value for key, value in config.items() if key != "model_type"}
    try:
        return transformers.AutoConfig.for_model(config["model_type"], **content)
    except Exception as error:
        raise HeterpsError(f"config of {config['model_type']}: {_one_line(error)}") from error


def _huggingface_class(architecture: str) -> Any:
    found = getattr(_transformers(), architecture, None)
    if found is None:
        raise HeterpsError(f"transformers has no class {architecture!r}")
    return found


def _default_architecture(config: Any) -> str:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    if getattr(config, "is_encoder_decoder", False):
        families = ["SEQ_TO_SEQ_CAUSAL_LM"]
    elif hasattr(config, "num_channels"):
        families = ["IMAGE_CLASSIFICATION"]
    else:
        families = ["CAUSAL_LM", "MASKED_LM"]
    for family in families:
        name = getattr(auto, f"MODEL_FOR_{family}_MAPPING_NAMES").get(config.model_type)
        if name is not None:
            return str(name)
    raise HeterpsError(
        f"config of {config.model_type}: add architectures, such as ['LlamaForCausalLM']"
    )


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
