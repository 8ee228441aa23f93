"""What in a Hugging Face config would have transformers fetch or run what is somewhere else."""

from __future__ import annotations

from typing import Any

from heterps_configs.errors import HeterpsError

# Fields that name code, or weights of a backbone.
_FETCHES = ("auto_map", "trust_remote_code", "use_pretrained_backbone", "custom_pipelines")
# Of attention and experts; others are names of kernels on a hub.
_IMPLEMENTATIONS = (
    None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention",
    "grouped_mm", "batched_mm",
)  # fmt: skip
_DEEPEST = 20


def check_config(config: Any, where: str, depth: int = 0) -> None:
    """Refuses what would have transformers fetch or run code and weights of others.

    Args:
        config: The config, or a part of it.
        where: The type of the model, for messages.
        depth: Of the part.

    Raises:
        HeterpsError: With the field.
    """
    if depth > _DEEPEST:
        raise HeterpsError(f"config of {where}: is too deep; at most {_DEEPEST} levels")
    for key, value in config.items() if isinstance(config, dict) else ():
        is_kernel = str(key).endswith("_implementation") and value not in _IMPLEMENTATIONS
        if (key in _FETCHES and value) or is_kernel:
            raise HeterpsError(
                f"config of {where}: {key}: code and weights from elsewhere are not loaded; "
                "remove the field"
            )
    entries = config.values() if isinstance(config, dict) else config
    for entry in entries if isinstance(config, dict | list) else ():
        check_config(entry, where, depth + 1)
