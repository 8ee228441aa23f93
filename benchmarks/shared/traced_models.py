"""Profiles of models that are not shipped: traced once from their config, then read from a file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_profile


def traced_profile(name: str, config: Mapping[str, Any], length: int | None) -> ModelProfile:
    """The profile of a model of Hugging Face; the next time it comes from a file.

    Args:
        name: Of the profile, and of its file.
        config: What its `config.json` would say.
        length: Tokens of a sample; None: images.
    """
    path = _folder() / f"{name}.yaml"
    if not path.exists():
        _traced(name, config, length).to_file(path)
    return load_profile(str(path))


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / "heterps-strategy-profiles"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _traced(name: str, config: Mapping[str, Any], length: int | None) -> ModelProfile:
    from heterps_runtime.huggingface.source import huggingface_source
    from heterps_runtime.tracing.trace import trace_source

    return trace_source(huggingface_source(dict(config), length), name, "bfloat16")
