"""From a Hugging Face `config.json` to a model's source, with natural inputs and target."""

from __future__ import annotations

import difflib
import inspect
import warnings
from collections.abc import Sequence
from typing import Any

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.source import InputSpecification, ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.huggingface.inputs import TOKENS, Sizes, learned_positions, natural_inputs
from heterps_runtime.huggingface.library import (
    class_named,
    default_architecture,
    families_of,
    read_config,
)
from heterps_runtime.huggingface.module import ignored_fields
from heterps_runtime.huggingface.targets import natural_target

_ENDS_WITH_HIDDEN_STATES = ("MODEL", "TEXT_ENCODING", "IMAGE")


def huggingface_source(
    config: dict[str, Any],
    sequence_length: int | None = None,
    image_size: int | None = None,
    inputs: Sequence[InputSpecification] = (),
) -> ModelSource:
    """Source of a Hugging Face `config.json`, with default inputs and target.

    Args:
        config: Content of the file; `architectures` names the class.
        sequence_length: Default: 512, or the longest that the model has positions for.
        image_size: Default: the config's, else 224.
        inputs: Take the place of defaults of the same name; one called `target` that of the target.

    Returns:
        The source; without a target where the class has no head (`has_no_head`).

    Raises:
        HeterpsError: transformers is missing, or it does not know the model or an input.
    """
    built = read_config(config)
    architecture = (config.get("architectures") or [default_architecture(built)])[0]
    kind = class_named(architecture)
    main = getattr(kind, "main_input_name", "input_ids")
    given = {entry.name: entry for entry in inputs}
    own_target = given.pop("target", None)
    _check_names(architecture, kind, given)
    sizes = Sizes(sequence_length, image_size)
    entries = {entry.name: entry for entry in natural_inputs(built, architecture, main, sizes)}
    takes_tokens = any(name in entries for name in TOKENS)
    if sequence_length is not None and not takes_tokens:
        raise HeterpsError(f"{architecture}: takes no tokens, so --sequence-length says nothing")
    entries |= given
    if main not in entries:
        raise HeterpsError(
            f"{architecture}: its input {main!r} has no default; give it, such as "
            f"--input {main}=16000:float32"
        )
    _check_lengths(architecture, built, entries, sequence_length)
    ignored = ignored_fields(config)
    if ignored:
        warnings.warn(
            f"{architecture}: {', '.join(ignored)} is ignored: no layer is skipped, and no input "
            "masked, at random",
            stacklevel=2,
        )
    source = ModelSource(
        kind="huggingface",
        config=config,
        architecture=architecture,
        inputs=tuple(entries.values()),
    )
    if own_target is not None:
        return source.changed(target=own_target, loss="cross_entropy")
    target = natural_target(architecture, built, entries)
    if target is not None:
        return source.changed(target=target.entry, loss=target.loss)
    if not has_no_head(architecture):
        raise HeterpsError(
            f"{architecture}: its loss is not known; name one with another head, or give "
            "--input target=SHAPE:int64<CLASSES"
        )
    return source


def has_no_head(architecture: str) -> bool:
    """Whether a class is a base model, which ends with hidden states."""
    return not families_of(architecture).isdisjoint(_ENDS_WITH_HIDDEN_STATES)


def config_dtype(config: dict[str, Any]) -> Dtype | None:
    """The dtype that a Hugging Face config names; None where it names none that is known."""
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, dict) else {}):
        named = str(part.get("dtype") or part.get("torch_dtype")).removeprefix("torch.")
        for dtype in ("bfloat16", "float16", "float32"):
            if named == dtype:
                return dtype
    return None


def _check_names(architecture: str, kind: Any, given: dict[str, InputSpecification]) -> None:
    known = list(inspect.signature(kind.forward).parameters)[1:]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            raise HeterpsError(f"--input {name}: {architecture} has no such input{hint}")


def _check_lengths(
    architecture: str,
    config: Any,
    entries: dict[str, InputSpecification],
    sequence_length: int | None,
) -> None:
    """Refuses more tokens than there are positions, and two lengths for one input."""
    most = learned_positions(config)
    for name in filter(entries.get, TOKENS):
        if most is not None and entries[name].shape and entries[name].shape[0] > most:
            raise HeterpsError(
                f"{architecture}: {name} has {entries[name].shape[0]} tokens, and the model learns "
                f"positions for {most}: --sequence-length {most} at most"
            )
        if sequence_length is not None and entries[name].shape != (sequence_length,):
            raise HeterpsError(f"--sequence-length {sequence_length} and --input {name} differ")
