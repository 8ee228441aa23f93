"""Trained weights as `from_pretrained` reads them: safetensors, with the model's config."""

from __future__ import annotations

import json
import os
from pathlib import Path

from heterps_configs.documents.base import parameter_format
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import HeterpsError

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"


def write_weights(
    checkpoint: str | os.PathLike[str], source: ModelSource | None, folder: Path
) -> None:
    """Writes `model.safetensors`, and of a Hugging Face model `config.json` beside it.

    A parameter that layers share is written once, under its first name, as `save_pretrained` does.

    Args:
        checkpoint: A checkpoint, or a folder of them: then the newest. A path or a URL.
        source: How the model is built; None where it is not known.
        folder: Exists.

    Raises:
        HeterpsError: There is no checkpoint, a file of it is damaged, or the safetensors library is
            missing.
    """
    from heterps_runtime.state.checkpoint import load_state_dict

    try:
        from safetensors.torch import save_file
    except ImportError:
        raise HeterpsError(
            "--to safetensors needs the safetensors library: pip install 'heterps[hf]'"
        ) from None
    state = load_state_dict(checkpoint)
    tied = state.document.tied_names
    tensors = {name: t.contiguous() for name, t in state.model.items() if name not in tied}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    if source is None or source.kind != "huggingface":
        return
    config = {
        **(source.config or {}),
        "architectures": [source.architecture],
        "dtype": parameter_format(state.document.plan.job.dtype),
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
