"""Small models with what a group splits of each."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from torch import Tensor, nn

from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.models.build import register_factory
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tensor_parallel.found_splits import SplitPlan
from heterps_runtime.tensor_parallel.plan import find_splits
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.small_models import CONFIGS, IMAGE_MODELS, TOKENS

_LLAMA_LIKE = {**CONFIGS["llama"], "num_key_value_heads": 4, "num_hidden_layers": 2}
# Biases, dropout of what heads attend to, and the same table in front and behind.
_SHARED_KEYS = {
    **CONFIGS["llama"],
    "model_type": "qwen2",
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "attention_dropout": 0.2,
    "tie_word_embeddings": True,
}
_BERT_DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}
_GPT2_DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.2}


def _hidden_layers() -> nn.Module:
    """Blocks of two linear layers, so that there is something to split between them."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 20), nn.Linear(20, 8)
            self.dropout = nn.Dropout(0.3)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.second(self.dropout(self.first(x).relu()))
            return output + x

    return nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 5))


class _Attention(nn.Module):
    """Four queries of two keys and values; its code says how often it repeats these."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(32, 32), nn.Linear(32, 32)
        self.key, self.value = nn.Linear(32, 16), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            made.unflatten(-1, (-1, 8)).transpose(1, 2)
            for made in (self.query(x), self.key(x), self.value(x))
        )
        key, value = (made.repeat_interleave(2, dim=1) for made in (key, value))
        heads = nn.functional.scaled_dot_product_attention(query, key, value)
        output: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return x + output


class _Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([_Attention(), _Attention()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Case(NamedTuple):
    """A model, its profile, and what of it is split."""

    source: ModelSource
    profile: ModelProfile
    found: SplitPlan


@cache
def case_of(name: str) -> Case:
    """A small model and how it is split."""
    source = _source(name)
    return Case(source, trace_source(source, name), find_splits(source))


def _source(name: str) -> ModelSource:
    if name == "perceptron":
        return factory_source(register_factory(_hidden_layers), ["x=8:float32"])
    if name == "own attention":
        return factory_source(register_factory(_Own), ["x=6,32:float32"])
    changes: dict[str, dict[str, Any]] = {
        "llama": {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2},
        "one key": {"num_attention_heads": 8, "num_key_value_heads": 1, "num_hidden_layers": 2},
        "one normed key": _LLAMA_LIKE
        | {"model_type": "qwen3", "head_dim": 8, "num_key_value_heads": 1},
        "shared keys": _SHARED_KEYS,
        "shared keys, no dropout": _SHARED_KEYS | {"attention_dropout": 0.0},
        "shared normed keys": _SHARED_KEYS | {"model_type": "qwen3", "head_dim": 8},
        "gpt2": {"n_layer": 2, **_GPT2_DROPOUT},
        "bert": {"num_hidden_layers": 2, **_BERT_DROPOUT},
        "vit": {"num_hidden_layers": 2, **_BERT_DROPOUT},
        "resnet": {"hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "bottleneck"},
        "t5": {"num_layers": 1},
        "qwen3": _LLAMA_LIKE | {"model_type": "qwen3", "head_dim": 8},
        "gemma2": _LLAMA_LIKE | {"model_type": "gemma2", "head_dim": 8},
        "mixtral": _LLAMA_LIKE
        | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    }
    config = {**CONFIGS.get("llama" if name == "one key" else name, {}), **changes[name]}
    if name in IMAGE_MODELS:
        return huggingface_source(config, image_size=32 if name == "resnet" else None)
    return huggingface_source(config, sequence_length=TOKENS)
