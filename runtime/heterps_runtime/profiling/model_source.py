"""From what a user writes for MODEL to a profile, saved or traced.

MODEL is a shipped name, a profile file, a Hugging Face `config.json` (or its folder), or
`package.module:factory`. torch and transformers are imported only where a module is built.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast, get_args

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.source import (
    InputDtype,
    InputSpecification,
    LossName,
    ModelSource,
)
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.yaml_files import read_yaml
from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.huggingface_config import config_problems
from heterps_configs.library import load_profile
from heterps_runtime.huggingface.source import config_dtype, huggingface_source
from heterps_runtime.models.build import build_module
from heterps_runtime.models.trust import trust

# Of a Hugging Face config that names none.
DEFAULT_DTYPE: Dtype = "bfloat16"
_INPUT = re.compile(
    r"(?P<name>\w+)=(?P<shape>\d*(?:[,x]\d+)*):(?P<dtype>[a-z]+\d*)(?:<(?P<classes>\d+))?"
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
        inputs: `name=shape:dtype` for each input, see `parse_input`; a factory needs them, any
            other model has its own.
        sequence_length: Tokens of one sample, for language models.
        dtype: What is traced in; None: what the config says, else bfloat16, with a warning; of a
            factory float32. A saved profile keeps its own.

    Raises:
        HeterpsError: Unknown name, broken file, or a model that cannot be built or traced.
    """
    parsed = _parsed_inputs(reference, inputs)
    if is_factory(reference):
        if sequence_length is not None:
            raise HeterpsError(
                f"{reference}: --sequence-length is for language models; use --input"
            )
        source = factory_source(reference, inputs)
        dtype = dtype or "float32"
    elif is_huggingface(reference):
        config = _read_config(reference)
        source = with_target(huggingface_source(config, sequence_length, inputs=parsed))
        dtype = dtype or config_dtype(config) or _default_dtype(reference)
    else:
        profile = load_profile(reference)
        if not parsed and sequence_length is None:
            return profile
        return _traced_again(profile, reference, parsed, sequence_length)
    from heterps_runtime.tracing.trace import trace_source

    return trace_source(source, name=reference, dtype=dtype)


def _default_dtype(reference: str) -> Dtype:
    """What most models are trained in on the GPUs that this software knows; says so."""
    warnings.warn(
        f"{reference}: names no dtype, so {DEFAULT_DTYPE} is taken, in which most such models are "
        "trained; another one with --dtype",
        stacklevel=3,
    )
    return DEFAULT_DTYPE


def _traced_again(
    profile: ModelProfile,
    reference: str,
    inputs: tuple[InputSpecification, ...],
    sequence_length: int | None,
) -> ModelProfile:
    """A saved profile for other inputs: as it is where they are its own, else traced."""
    saved = profile.source
    if saved is None:
        raise HeterpsError(
            f"{reference}: does not say how the model is built, so it cannot be traced again for "
            "--input or --sequence-length"
        )
    if saved.kind == "huggingface":
        config = {"architectures": [saved.architecture], **(saved.config or {})}
        own = () if sequence_length is not None else saved.inputs
        named = {entry.name: entry for entry in (*own, *inputs)}
        source = with_target(
            huggingface_source(config, sequence_length, inputs=tuple(named.values()))
        )
        source = source.changed(config=saved.config)
    else:
        source = _changed_inputs(saved, reference, inputs, sequence_length)
    if source == saved:
        return profile
    if profile.measurements:
        warnings.warn(
            f"{reference}: is traced again for other inputs, without what was measured for its own",
            stacklevel=3,
        )
    from heterps_runtime.tracing.trace import trace_source

    traced = trace_source(source, profile.name, profile.dtype)
    return traced.changed(description=profile.description)


def _changed_inputs(
    source: ModelSource,
    reference: str,
    inputs: tuple[InputSpecification, ...],
    sequence_length: int | None,
) -> ModelSource:
    """The source of a factory with other inputs of the same names."""
    if sequence_length is not None:
        raise HeterpsError(f"{reference}: --sequence-length is for language models; use --input")
    given = {entry.name: entry for entry in inputs}
    target = given.pop("target", source.target)
    known = [entry.name for entry in source.inputs]
    for name in given:
        if name not in known:
            raise HeterpsError(f"--input {name}: {reference} takes {', '.join(known)} and target")
    found = tuple(given.get(entry.name, entry) for entry in source.inputs)
    return source.changed(inputs=found, target=target)


def _parsed_inputs(reference: str, inputs: Sequence[str]) -> tuple[InputSpecification, ...]:
    parsed = tuple(map(parse_input, inputs))
    if len({entry.name for entry in parsed}) < len(parsed):
        raise HeterpsError(f"{reference}: two inputs have the same name")
    return parsed


def is_huggingface(reference: str) -> bool:
    """Whether a reference is a Hugging Face `config.json` or a folder that holds one.

    Raises:
        HeterpsError: A folder without `config.json`, or a JSON file that cannot be read.
    """
    path = Path(reference)
    if reference and path.is_dir():
        if not (path / "config.json").is_file():
            raise HeterpsError(f"{reference}: the folder has no config.json")
        return True
    return path.suffix == ".json" and path.is_file() and "model_type" in _mapping(read_yaml(path))


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
    if match is None or match["dtype"] not in get_args(InputDtype):
        raise HeterpsError(
            f"input {text!r}: expected name=shape:dtype with the shape of one sample, such as "
            f"x=3,32,32:float32 or ids=128:int64<32000; dtypes: {', '.join(get_args(InputDtype))}"
        )
    shape = tuple(int(size) for size in re.split("[,x]", match["shape"]) if size)
    if 0 in shape:
        raise HeterpsError(f"input {text!r}: a size is 0; each must be at least 1")
    is_integer, classes = match["dtype"] in ("int64", "int32", "uint8"), match["classes"]
    if is_integer != (classes is not None) or classes == "0":
        raise HeterpsError(
            f"input {text!r}: a whole number needs a limit (int64<32000 draws 0..31999), others "
            "have none"
        )
    return InputSpecification(
        name=match["name"],
        shape=shape,
        dtype=cast(InputDtype, match["dtype"]),
        num_classes=int(classes) if classes else None,
    )


def factory_source(factory: str, inputs: Sequence[str]) -> ModelSource:
    """Source of a `package.module:factory`; an input called `target` says what the loss compares.

    The caller names it, and so trusts it (`heterps_runtime.models.trust`).

    Without a `target`, it follows from the model's output: classes where the last dimension is
    above 1 (cross entropy), else a number (mean squared error).

    Raises:
        HeterpsError: No inputs, a malformed one, or a model that cannot be built or run.
    """
    given = {entry.name: entry for entry in _parsed_inputs(factory, inputs)}
    target = given.pop("target", None)
    if not given:
        raise HeterpsError(f"{factory}: say what it takes, such as --input x=32:float32")
    trust(factory)
    source = ModelSource(kind="factory", factory=factory, inputs=tuple(given.values()))
    loss: LossName
    if target is None:
        target, loss = target_of_output(source)
    else:
        loss = "cross_entropy" if target.is_whole else "mean_squared_error"
    return source.changed(target=target, loss=loss)


def target_of_output(source: ModelSource) -> tuple[InputSpecification, LossName]:
    """What the loss of a model without a target compares its output with, and the loss."""
    shape = _output_shape(source)
    if shape and shape[-1] > 1:
        classes = shape[-1]
        target = InputSpecification(
            name="target", shape=shape[:-1], dtype="int64", num_classes=classes
        )
        return target, "cross_entropy"
    return InputSpecification(name="target", shape=shape), "mean_squared_error"


def with_target(source: ModelSource) -> ModelSource:
    """A Hugging Face source with a target; a base model's is of its output's shape, and says so.

    Raises:
        HeterpsError: The model cannot be built or run.
    """
    if source.target is not None:
        return source
    shape = _output_shape(source)
    warnings.warn(
        f"{source.architecture}: has no head, so no loss of its own; mean squared error on its "
        "output stands for one",
        stacklevel=3,
    )
    target = InputSpecification(name="target", shape=shape)
    return source.changed(target=target, loss="mean_squared_error")


def _output_shape(source: ModelSource) -> tuple[int, ...]:
    """Of what the model makes of one sample."""
    from heterps_runtime.models.recordings import record

    output = record(source, build_module(source), batch_size=2).output
    assert output is not None
    return output.shape[1:]


def _read_config(reference: str) -> dict[str, Any]:
    path = Path(reference)
    file = path / "config.json" if path.is_dir() else path
    config = _mapping(read_yaml(file))
    if "model_type" not in config:
        raise HeterpsError(f"{reference}: config.json has no model_type")
    problems = list(config_problems(config))
    if problems:
        raise DocumentError(str(file), problems)
    return config


def _mapping(content: Any) -> dict[str, Any]:
    return content if isinstance(content, dict) else {}
