"""What scripts of several targets have in common: the model, and examples of its data."""

from __future__ import annotations

import re

from heterps.exports import torch_script
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import HeterpsError

# Decoders whose stack makes rotary tables for all its blocks, and takes embeddings, too.
STACKS = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "olmo2", "phi3")


def is_stack(source: ModelSource) -> bool:
    """Whether scripts know how to take the model's blocks apart."""
    return (source.config or {}).get("model_type") in STACKS


def model_and_data(source: ModelSource, target: str) -> str:
    """Functions of a script: how the model is built, example data, and the loss.

    Raises:
        HeterpsError: A name of the document is no name of Python.
    """
    assert source.target is not None
    entries = [(entry.shape, entry.num_classes) for entry in (*source.inputs, source.target)]
    return torch_script.MODEL_AND_DATA.format(build=_build(source, target), entries=entries)


def _build(source: ModelSource, target: str) -> str:
    if source.kind == "huggingface":
        architecture = as_path(source.architecture or "", target)
        return torch_script.BUILD_HUGGINGFACE.format(architecture=architecture)
    module, function = (as_path(part, target) for part in (source.factory or ":").split(":", 1))
    return f"    from {module} import {function}\n\n    return {function}()"


def as_words(text: str) -> str:
    """A name out of a document as a script may say it: nothing of it ends a text."""
    return re.sub(r"[^\w.,+ -]", "_", text)


def as_path(text: str, target: str) -> str:
    """A path of Python out of a document, which becomes code of the script.

    Raises:
        HeterpsError: It is something else.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text):
        raise HeterpsError(f"{target}: {text[:80]!r} is no name of a module or a function")
    return text
