"""Makes the model profiles that are shipped in `heterps_configs/models`.

Run: `python -m heterps_runtime.shipped_profiles [NAME ...] [--folder DIRECTORY]`
(needs transformers; no weights, no GPU, a few seconds for each model).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.source import InputSpecification, ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.examples.ctr import NUM_DENSE, NUM_TABLES
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.trace import trace_source


@dataclass(frozen=True)
class ShippedModel:
    """How one profile is made."""

    description: str
    source: Callable[[], ModelSource]
    dtype: Dtype = "float32"


def _language_model(sequence_length: int, **config: Any) -> Callable[[], ModelSource]:
    return lambda: huggingface_source(config, sequence_length)


def _image_model(**config: Any) -> Callable[[], ModelSource]:
    return lambda: huggingface_source(config)


def _llama(**sizes: int) -> dict[str, Any]:
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes}


def _resnet(depths: list[int]) -> Callable[[], ModelSource]:
    return _image_model(
        model_type="resnet",
        architectures=["ResNetForImageClassification"],
        depths=depths,
        num_labels=1000,
    )


def _click_through(factory: str, rows: int) -> ModelSource:
    return ModelSource(
        kind="factory",
        factory=f"heterps_runtime.examples.ctr:{factory}",
        inputs=(
            InputSpecification(name="sparse", shape=(NUM_TABLES,), dtype="int64", num_classes=rows),
            InputSpecification(name="dense", shape=(NUM_DENSE,)),
        ),
        target=InputSpecification(name="click", shape=(1,), num_classes=2),
        loss="binary_cross_entropy",
    )


MODELS: dict[str, ShippedModel] = {
    "llama-7b": ShippedModel(
        "Llama 2 7B: 32 decoder layers, hidden 4096",
        _language_model(
            2048,
            **_llama(
                hidden_size=4096,
                intermediate_size=11008,
                num_hidden_layers=32,
                num_attention_heads=32,
                vocab_size=32000,
            ),
        ),
        "bfloat16",
    ),
    "llama-70b": ShippedModel(
        "Llama 2 70B: 80 decoder layers, hidden 8192, grouped queries",
        _language_model(
            4096,
            **_llama(
                hidden_size=8192,
                intermediate_size=28672,
                num_hidden_layers=80,
                num_attention_heads=64,
                num_key_value_heads=8,
                vocab_size=32000,
            ),
        ),
        "bfloat16",
    ),
    "llama-tiny": ShippedModel(
        "A Llama that trains on a laptop: 14 decoder layers, hidden 128",
        _language_model(
            64,
            **_llama(
                hidden_size=128,
                intermediate_size=384,
                num_hidden_layers=14,
                num_attention_heads=4,
                vocab_size=256,
            ),
        ),
    ),
    "gpt2": ShippedModel(
        "GPT-2: 12 blocks, hidden 768, output tied to the embedding; without dropout",
        _language_model(
            1024,
            model_type="gpt2",
            architectures=["GPT2LMHeadModel"],
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        "bfloat16",
    ),
    "bert-large": ShippedModel(
        "BERT large: 24 layers, hidden 1024, masked language model; without dropout",
        _language_model(
            512,
            model_type="bert",
            architectures=["BertForMaskedLM"],
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=24,
            num_attention_heads=16,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        "bfloat16",
    ),
    "vit-large": ShippedModel(
        "ViT large: 24 layers, hidden 1024, 16 x 16 patches of 224 x 224 pixels",
        _image_model(
            model_type="vit",
            architectures=["ViTForImageClassification"],
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=24,
            num_attention_heads=16,
            num_labels=1000,
        ),
        "bfloat16",
    ),
    "resnet-50": ShippedModel("ResNet-50: 16 bottleneck layers", _resnet([3, 4, 6, 3])),
    "resnet-152": ShippedModel("ResNet-152: 50 bottleneck layers", _resnet([3, 8, 36, 3])),
    "ctr": ShippedModel(
        "Click-through rate: 26 tables of 1,000,000 x 64, dense towers, all pairs of products",
        lambda: _click_through("click_through", 1_000_000),
    ),
    "ctr-tiny": ShippedModel(
        "The click-through model with tables of 1,000 x 16, for a laptop",
        lambda: _click_through("click_through_tiny", 1_000),
    ),
    "perceptron": ShippedModel(
        "A plain nn.Sequential: six hidden layers, the middle ones twice as wide",
        lambda: factory_source(
            "heterps_runtime.examples.sequential:perceptron", ["x=64:float32", "target=:int64<10"]
        ),
    ),
}


def make_profile(name: str) -> ModelProfile:
    """Traces one shipped model."""
    entry = MODELS[name]
    profile = trace_source(entry.source(), name, entry.dtype)
    return profile.changed(
        description=entry.description, command=f"python -m heterps_runtime.shipped_profiles {name}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the named profiles, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    default = Path(str(files("heterps_configs"))) / "models"
    parser.add_argument("--folder", type=Path, default=default)
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(MODELS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    for name in options.names or MODELS:
        started = time.perf_counter()
        profile = make_profile(name)
        profile.to_file(options.folder / f"{name}.yaml")
        seconds = time.perf_counter() - started
        print(f"{name}: {profile.num_layers} layers, {seconds:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
