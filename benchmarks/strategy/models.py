"""Profiles of the models: shipped ones, and others that are traced once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.shared.traced_models import traced_profile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_profile

_SHIPPED = {"7b": "llama-7b", "70b": "llama-70b"}
# Sequence length (None: images) and what Hugging Face's config says.
_TRACED: Mapping[str, tuple[int | None, Mapping[str, Any]]] = {
    "13b": (
        2048,
        {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 5120,
            "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
            "vocab_size": 32000,
        },
    ),
    "mixtral": (
        2048,
        {
            "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 4096,
            "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
            "vocab_size": 32000,
        },
    ),
    "gpt2-xl": (
        1024,
        {
            "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 1600,
            "n_layer": 48, "n_head": 25, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        },
    ),
    "vit-h": (
        None,
        {
            "model_type": "vit", "architectures": ["ViTForImageClassification"],
            "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
            "num_attention_heads": 16, "patch_size": 14, "num_labels": 1000,
        },
    ),
}  # fmt: skip
MODELS = (*_SHIPPED, *_TRACED)


def profile_named(name: str) -> ModelProfile:
    """The profile of one of `MODELS`."""
    if name in _SHIPPED:
        return load_profile(_SHIPPED[name])
    length, config = _TRACED[name]
    return traced_profile(name, config, length)
