"""Hugging Face configs: which class they mean, what it takes and what its loss compares.

transformers is imported only when a function here is called.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.huggingface_config import config_problems
from heterps_configs.documents.model_profile import InputSpecification, ModelSource
from heterps_configs.errors import DocumentError, HeterpsError

if TYPE_CHECKING:
    from torch import nn

DEFAULT_SEQUENCE_LENGTH = 512
# What a language model's loss compares its output with, by the name of the input.
_LONGEST = ("max_position_embeddings", "max_target_positions")
# Of these families, positions begin behind that of the padding token.
_BEHIND_PADDING = ("roberta", "camembert", "longformer", "xmod")
_TOKENS = ("decoder_input_ids", "input_ids")
DEFAULT_IMAGE_SIZE = 224
# Fields of a config that name what is somewhere else: code, or weights of a backbone.
_FETCHES = ("auto_map", "trust_remote_code", "use_pretrained_backbone", "custom_pipelines")
# Of attention and experts; others are names of kernels on a hub.
_IMPLEMENTATIONS = (
    None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention",
    "grouped_mm", "batched_mm",
)  # fmt: skip
_DEEPEST = 20
# A plan cannot follow layers that are skipped at random.
_SKIPS_LAYERS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")


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

    Raises:
        HeterpsError: transformers is missing, or it does not know the model or an input.
    """
    built = _huggingface_config(config)
    architecture = (config.get("architectures") or [_default_architecture(built)])[0]
    kind = _huggingface_class(architecture)
    main = getattr(kind, "main_input_name", "input_ids")
    given = {entry.name: entry for entry in inputs}
    own_target = given.pop("target", None)
    _check_names(architecture, kind, given)
    entries = {
        entry.name: entry for entry in _default_inputs(built, main, sequence_length, image_size)
    }
    takes_tokens = any(name in entries for name in _TOKENS)
    if sequence_length is not None and not takes_tokens:
        raise HeterpsError(f"{architecture}: takes no tokens, so --sequence-length says nothing")
    entries |= given
    if main not in entries:
        raise HeterpsError(
            f"{architecture}: its input {main!r} has no default; give it, such as "
            f"--input {main}=16000:float32"
        )
    most = _learned_positions(built)
    for name in filter(entries.get, _TOKENS):
        if most is not None and entries[name].shape and entries[name].shape[0] > most:
            raise HeterpsError(
                f"{architecture}: {name} has {entries[name].shape[0]} tokens, and the model learns "
                f"positions for {most}: --sequence-length {most} at most"
            )
        if sequence_length is not None and entries[name].shape != (sequence_length,):
            raise HeterpsError(f"--sequence-length {sequence_length} and --input {name} differ")
    if any(config.get(name) for name in _SKIPS_LAYERS):
        warnings.warn(f"{architecture}: layerdrop is ignored: no layer is skipped", stacklevel=2)
    source = ModelSource(
        kind="huggingface",
        config=config,
        architecture=architecture,
        inputs=tuple(entries.values()),
    )
    target = own_target or _target_of_architecture(source, built)
    if target is None:
        raise HeterpsError(
            f"{architecture}: its loss is not known; name one with a head, or give "
            "--input target=SHAPE:int64<CLASSES"
        )
    return source.changed(target=target, loss="cross_entropy")


def config_dtype(config: dict[str, Any]) -> Dtype | None:
    """The dtype that a Hugging Face config names; None where it names none that is known."""
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, dict) else {}):
        named = str(part.get("dtype") or part.get("torch_dtype")).removeprefix("torch.")
        for dtype in ("bfloat16", "float16", "float32"):
            if named == dtype:
                return dtype
    return None


def build_huggingface(source: ModelSource) -> nn.Module:
    """The module of a source of kind `huggingface`, on the current default device.

    Raises:
        HeterpsError: transformers is missing, or refuses the config.
    """
    assert source.config is not None
    assert source.architecture is not None
    config = _huggingface_config(source.config)
    for part in (config, config.get_text_config()):
        part.use_cache = False
        for name in _SKIPS_LAYERS:
            if hasattr(part, name):
                setattr(part, name, 0.0)
    try:
        module: nn.Module = _huggingface_class(source.architecture)(config)
    except Exception as error:
        raise HeterpsError(f"{source.architecture}: {one_line(error)}") from error
    return module


def one_line(error: BaseException) -> str:
    """Class of an exception and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _default_inputs(
    config: Any, main: str, sequence_length: int | None, image_size: int | None
) -> Iterator[InputSpecification]:
    """What the model takes, as far as its config says so; the main input first."""
    text = config.get_text_config()
    is_pair = getattr(config, "is_encoder_decoder", False)
    if main == "pixel_values":
        size = image_size or getattr(config, "image_size", None) or DEFAULT_IMAGE_SIZE
        height, width = (size, size) if isinstance(size, int) else size
        channels = getattr(config, "num_channels", 3)
        yield InputSpecification(name=main, shape=(channels, height, width))
    elif main == "input_features" and hasattr(config, "max_source_positions"):
        # Whisper: its convolutions halve the number of frames.
        shape = (config.num_mel_bins, 2 * config.max_source_positions)
        yield InputSpecification(name=main, shape=shape)
    if main == "input_ids" or is_pair:
        longest = (getattr(text, name, None) for name in _LONGEST)
        most = [n for n in (*longest, _learned_positions(config)) if n and n > 0]
        length = sequence_length or min([DEFAULT_SEQUENCE_LENGTH, *most])
        ids = InputSpecification(
            name="input_ids", shape=(length,), dtype="int64", num_classes=text.vocab_size
        )
        if main == "input_ids":
            yield ids
        if is_pair:
            yield ids.changed(name="decoder_input_ids")


def _learned_positions(config: Any) -> int | None:
    """How many tokens have a position in its table; None where positions are computed."""
    text = config.get_text_config(decoder=True)
    if any(getattr(text, name, None) for name in ("rope_parameters", "rope_theta", "alibi")):
        return None
    if getattr(text, "position_biased_input", True) is False:
        return None
    most = next((n for n in (getattr(text, name, None) for name in _LONGEST) if n and n > 0), None)
    if most is None or not any(name in text.model_type for name in _BEHIND_PADDING):
        return most
    return int(most - text.pad_token_id - 1)


def _check_names(architecture: str, kind: Any, given: dict[str, InputSpecification]) -> None:
    known = list(inspect.signature(kind.forward).parameters)[1:]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
            raise HeterpsError(f"--input {name}: {architecture} has no such input{hint}")


def _target_of_architecture(source: ModelSource, config: Any) -> InputSpecification | None:
    architecture = source.architecture or ""
    if architecture.endswith(
        ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
    ):
        inputs = {entry.name: entry for entry in source.inputs}
        tokens = next((inputs[name] for name in _TOKENS if name in inputs), None)
        return None if tokens is None else tokens.changed(name="labels")
    if architecture.endswith(("ForImageClassification", "ForSequenceClassification")):
        return InputSpecification(name="labels", dtype="int64", num_classes=config.num_labels)
    return None


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise HeterpsError(
            "Hugging Face models need the transformers library: pip install 'heterps[hf]'"
        ) from None


def _huggingface_config(config: dict[str, Any]) -> Any:
    _check_config(config, str(config.get("model_type")))
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


def _huggingface_class(architecture: str) -> Any:
    transformers = _transformers()
    # Never any attribute: a document names it.
    if architecture not in _model_classes():
        raise HeterpsError(f"transformers has no class of models {architecture!r}")
    return getattr(transformers, architecture)


@cache
def _model_classes() -> frozenset[str]:
    """What transformers' own lists of models name."""
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    lists = (found for name, found in vars(auto).items() if name.endswith("_MAPPING_NAMES"))
    entries = (entry for names in lists for entry in names.values())
    return frozenset(
        name for entry in entries for name in ([entry] if isinstance(entry, str) else entry)
    )


def _check_config(config: Any, where: str, depth: int = 0) -> None:
    """Refuses what would have transformers fetch or run code and weights of others.

    Raises:
        HeterpsError: With the field.
    """
    if depth > _DEEPEST:
        raise HeterpsError(f"config of {where}: is too deep")
    for key, value in config.items() if isinstance(config, dict) else ():
        is_kernel = str(key).endswith("_implementation") and value not in _IMPLEMENTATIONS
        if (key in _FETCHES and value) or is_kernel:
            raise HeterpsError(
                f"config of {where}: {key}: code and weights from elsewhere are not loaded; "
                "remove the field"
            )
    entries = config.values() if isinstance(config, dict) else config
    for entry in entries if isinstance(config, dict | list) else ():
        _check_config(entry, where, depth + 1)


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
