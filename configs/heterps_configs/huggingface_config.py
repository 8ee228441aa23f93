"""What a Hugging Face config may ask for, looked at before anything of that size is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Far above any model; the library makes a list or a module for each.
MOST_PARTS = 8192
LARGEST_NUMBER = 2**40
# Words in the names of what the library makes so many of.
_COUNTED = ("layer", "depth", "block", "expert", "head", "stage", "group")
_NEEDED = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "hidden_size", "n_embd", "d_model",
    "num_attention_heads", "n_head", "n_heads", "vocab_size", "n_positions",
    "max_position_embeddings",
)  # fmt: skip


def config_problems(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """One line for each count or size of a `config.json` that no model has."""
    if not path:
        yield from _unnamed(config)
    for key, value in config.items():
        where = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from config_problems(value, where)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            is_counted = any(word in str(key) for word in _COUNTED)
            most = MOST_PARTS if is_counted else LARGEST_NUMBER
            if not abs(number) <= most:
                yield f"{where}: must be at most {most}, got {number}"
            elif key in _NEEDED and number < 1:
                yield f"{where}: must be at least 1, got {number}"


def _unnamed(config: Mapping[str, Any]) -> Iterator[str]:
    """What names the model's class, and is no name."""
    if not isinstance(config.get("model_type", ""), str):
        yield f"model_type: must be text, got {config['model_type']!r}"
    named = config.get("architectures")
    if named and not (
        isinstance(named, list) and all(isinstance(name, str) and name for name in named)
    ):
        yield f"architectures: must be a list of text, got {named!r}"
