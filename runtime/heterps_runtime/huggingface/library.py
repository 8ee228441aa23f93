"""transformers itself: its configs, and its classes of models by what they are for."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from functools import cache
from typing import Any

from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.huggingface_config import config_problems
from heterps_runtime.huggingface.checks import check_config

# What a config without `architectures` means, by what transformers lists it under.
_OF_PAIRS = ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ")
_OF_IMAGES = ("IMAGE_CLASSIFICATION",)
_OF_OTHERS = (
    "MASKED_LM", "CAUSAL_LM", "CTC", "AUDIO_CLASSIFICATION", "IMAGE_TEXT_TO_TEXT",
    "ZERO_SHOT_IMAGE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION",
)  # fmt: skip


def one_line(error: BaseException) -> str:
    """Class of an exception and the first line of its message; the next, where that ends in `:`."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    count = 2 if lines and lines[0].endswith(":") else 1
    return f"{type(error).__name__}: {' '.join(lines[:count]) or 'no message'}"


def read_config(config: dict[str, Any]) -> Any:
    """Transformers' object of a config.

    Raises:
        HeterpsError: transformers is missing, does not know the type, or refuses a field; or the
            config names code or weights from elsewhere.
    """
    check_config(config, str(config.get("model_type")))
    problems = list(config_problems(config))
    if problems:
        raise DocumentError("config.json", problems)
    transformers = _transformers()
    content = {key: value for key, value in config.items() if key != "model_type"}
    _check_type(config["model_type"])
    try:
        return transformers.AutoConfig.for_model(config["model_type"], **content)
    except Exception as error:
        raise HeterpsError(f"config of {config['model_type']}: {one_line(error)}") from error


def modules_of(source: ModelSource | None) -> tuple[str, ...]:
    """Names of what building a model imports for seconds; none for those of other libraries."""
    if source is None or source.config is None:
        return ()
    name = str(source.config.get("model_type")).replace("-", "_")
    auto = "transformers.models.auto.modeling_auto"
    return (auto, f"transformers.models.{name}.modeling_{name}") if name.isidentifier() else (auto,)


def class_named(architecture: str) -> Any:
    """A class of models, such as `LlamaForCausalLM`.

    Raises:
        HeterpsError: transformers is missing, or lists none of that name.
    """
    transformers = _transformers()
    # Never any attribute: a document names it.
    if not families_of(architecture):
        raise HeterpsError(f"transformers has no class of models {architecture!r}")
    return getattr(transformers, architecture)


def families_of(architecture: str) -> frozenset[str]:
    """What transformers lists a class under, such as `CAUSAL_LM`; a base model: under `MODEL`."""
    return _families().get(architecture, frozenset())


def default_architecture(config: Any) -> str:
    """The class that a config means which names none.

    Raises:
        HeterpsError: It means none that can be trained.
    """
    if getattr(config, "is_encoder_decoder", False):
        wanted: Iterable[str] = _OF_PAIRS
    elif hasattr(config, "num_channels"):
        wanted = _OF_IMAGES
    else:
        wanted = _OF_OTHERS
    for family in wanted:
        found = _lists().get(family, {}).get(config.model_type)
        if found is not None:
            return str(_names(found)[0])
    raise HeterpsError(
        f"config of {config.model_type}: add architectures, such as ['LlamaForCausalLM']"
    )


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise HeterpsError(
            "Hugging Face models need the transformers library: pip install 'heterps[hf]'"
        ) from None


def _check_type(name: str) -> None:
    """Before transformers does, which answers with all names of types that it knows.

    Raises:
        HeterpsError: transformers has no such type.
    """
    known = list(_transformers().CONFIG_MAPPING)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "a newer release may know it"
        version = _transformers().__version__
        raise HeterpsError(
            f"config.json: model_type: transformers {version} knows no {name[:60]!r}; {hint}"
        )


@cache
def _lists() -> dict[str, dict[str, Any]]:
    """Transformers' own lists of models: family -> type -> a class or several."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    suffix = "_MAPPING_NAMES"
    return {
        name.removeprefix("MODEL_FOR_").removesuffix(suffix): dict(found)
        for name, found in vars(auto).items()
        if name.startswith("MODEL_") and name.endswith(suffix)
    } | {"MODEL": dict(auto.MODEL_MAPPING_NAMES)}


@cache
def _families() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for family, classes in _lists().items():
        for entry in classes.values():
            for name in _names(entry):
                found.setdefault(name, set()).add(family)
    return {name: frozenset(families) for name, families in found.items()}


def _names(entry: Any) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else tuple(entry)
