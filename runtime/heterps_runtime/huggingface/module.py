"""The module of a Hugging Face config, without what a plan cannot follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.huggingface.library import class_named, one_line, read_config

if TYPE_CHECKING:
    from torch import nn

# Of layers, at random: -> how they are not skipped.
_SKIPS_LAYERS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
# Of parts of a sound, at random: their number is not known before.
_MASKS_INPUTS = ("apply_spec_augment",)


def ignored_fields(config: dict[str, Any]) -> list[str]:
    """What a config asks for by name and a run leaves out: layers skipped, inputs masked."""
    return [name for name in (*_SKIPS_LAYERS, *_MASKS_INPUTS) if config.get(name)]


def build_huggingface(source: ModelSource) -> nn.Module:
    """The module of a source of kind `huggingface`, on the current default device.

    Raises:
        HeterpsError: transformers is missing, or refuses the config.
    """
    assert source.config is not None
    assert source.architecture is not None
    config = read_config(source.config)
    for part in (config, config.get_text_config()):
        part.use_cache = False
        for name in _SKIPS_LAYERS:
            if hasattr(part, name):
                setattr(part, name, 0.0)
        for name in _MASKS_INPUTS:
            if hasattr(part, name):
                setattr(part, name, False)
    try:
        module: nn.Module = class_named(source.architecture)(config)
    except Exception as error:
        raise HeterpsError(f"{source.architecture}: {one_line(error)}") from error
    return module
