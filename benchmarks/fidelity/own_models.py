"""Models of the own runs: seven architectures, in a size for emulated and one for plain runs.

Emulated devices need real computation that is light against what they emulate; plain processes
cover operations from tens of microseconds to tens of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_profile
from heterps_runtime.examples.sequential import perceptron
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.trace import trace_source

HERE = "benchmarks.fidelity.own_models"


@dataclass(frozen=True)
class Case:
    """A model and the micro-batches that it trains on.

    Attributes:
        source: Builds the model; called with nothing.
        micro_batch_size: Samples of one micro-batch.
        slowdown: Of the fastest emulated device against this machine.
    """

    name: str
    source: Callable[[], ModelSource]
    micro_batch_size: int
    slowdown: float = 1.0

    def profile(self) -> ModelProfile:
        """The traced layers, without measurements."""
        return trace_source(self.source(), self.name)


def _llama(width: int, layers: int, tokens: int, vocabulary: int, head: int = 32) -> ModelSource:
    config = {
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 8 * width // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": width // head,
        "num_key_value_heads": width // (2 * head),
        "vocab_size": vocabulary,
    }
    return huggingface_source(config, sequence_length=tokens)


def _gpt2(width: int, layers: int, tokens: int, vocabulary: int) -> ModelSource:
    """With its output layer tied to the embedding."""
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": width,
        "n_layer": layers,
        "n_head": width // 32,
        "n_positions": tokens,
        "vocab_size": vocabulary,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }
    return huggingface_source(config, sequence_length=tokens)


def _encoder(model_type: str, width: int, layers: int, **more: Any) -> Mapping[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "intermediate_size": 4 * width,
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
        **more,
    }


def _bert(width: int, layers: int, tokens: int, vocabulary: int) -> ModelSource:
    config = _encoder(
        "bert", width, layers, architectures=["BertForMaskedLM"], vocab_size=vocabulary
    )
    return huggingface_source(dict(config), sequence_length=tokens)


def _vit(width: int, layers: int, image: int, patch: int) -> ModelSource:
    config = _encoder(
        "vit",
        width,
        layers,
        architectures=["ViTForImageClassification"],
        image_size=image,
        patch_size=patch,
    )
    return huggingface_source(dict(config))


def _resnet(widths: list[int], depths: list[int], image: int) -> ModelSource:
    config = {
        "model_type": "resnet",
        "architectures": ["ResNetForImageClassification"],
        "embedding_size": widths[0],
        "hidden_sizes": widths,
        "depths": depths,
    }
    return huggingface_source(config, image_size=image)


def _click_through() -> ModelSource:
    source = load_profile("ctr-tiny").source
    assert source is not None
    return source


def wide_perceptron() -> Any:
    """Twelve hidden layers of 512 and 1,024 units."""
    return perceptron(inputs=64, width=512, depth=12)


def _perceptron() -> ModelSource:
    return factory_source(f"{HERE}:wide_perceptron", ["x=64:float32"])


EMULATED = (
    Case("llama", lambda: _llama(64, 6, 16, 256), 2, slowdown=12),
    Case("gpt2", lambda: _gpt2(64, 6, 16, 256), 2, slowdown=12),
    Case("bert", lambda: _bert(64, 6, 16, 256), 2, slowdown=12),
    Case("vit", lambda: _vit(64, 6, 32, 8), 2, slowdown=12),
    Case("resnet", lambda: _resnet([16, 32], [2, 3], 32), 2, slowdown=12),
    Case("click-through", _click_through, 16, slowdown=24),
)

# With several heads, for groups; slow, because sums over a group are real ones, too.
GROUPED = (
    Case("llama", lambda: _llama(128, 4, 16, 256, head=16), 2, slowdown=60),
    Case("gpt2", lambda: _gpt2(128, 4, 16, 256), 2, slowdown=60),
    Case("bert", lambda: _bert(128, 4, 16, 256), 2, slowdown=60),
    Case("vit", lambda: _vit(128, 4, 32, 8), 2, slowdown=60),
)

PLAIN = (
    Case("click-through", _click_through, 256),
    Case("perceptron", _perceptron, 32),
    Case("gpt2", lambda: _gpt2(128, 8, 32, 1000), 2),
    Case("resnet", lambda: _resnet([32, 64, 128], [2, 2, 2], 64), 2),
    Case("bert", lambda: _bert(256, 6, 64, 2000), 2),
    Case("vit", lambda: _vit(256, 8, 64, 8), 2),
    Case("llama", lambda: _llama(512, 8, 64, 2000), 4),
)
