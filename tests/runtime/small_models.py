"""Small models of every kind, and modules with odd habits, for the tests of trace and stages."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from heterps_configs.documents.model.source import InputSpecification, ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.examples.ctr import NUM_DENSE, NUM_TABLES
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.models.initialise import initial_values, place
from heterps_runtime.models.recording import canonical_names
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.trace import trace_source
from tests.runtime import functional_models

HERE = "tests.runtime.small_models"
TOKENS = 12
WIDTH = 8

_BERT_LIKE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
    },
    "gpt2": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 32,
        "n_layer": 4,
        "n_head": 4,
        "vocab_size": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "bert": {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": 64,
        **_BERT_LIKE,
    },
    "vit": {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification"],
        "image_size": 16,
        "patch_size": 8,
        **_BERT_LIKE,
    },
    "resnet": {
        "model_type": "resnet",
        "architectures": ["ResNetForImageClassification"],
        "embedding_size": 8,
        "hidden_sizes": [8, 16],
        "depths": [2, 2],
    },
    "t5": {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
        "vocab_size": 64,
        "dropout_rate": 0.0,
        # Attention without scaling: at the usual size rounding errors of float32 grow with depth.
        "initializer_factor": 0.3,
    },
    "swin": {
        "model_type": "swin",
        "architectures": ["SwinForImageClassification"],
        "image_size": 32,
        "patch_size": 4,
        "embed_dim": 8,
        "depths": [2, 2],
        "num_heads": [2, 2],
        "window_size": 4,
        "drop_path_rate": 0.0,
    },
    "convnext": {
        "model_type": "convnext",
        "architectures": ["ConvNextForImageClassification"],
        "hidden_sizes": [8, 16],
        "depths": [2, 2],
        "num_stages": 2,
    },
}
IMAGE_MODELS = ("vit", "resnet", "swin", "convnext")
ODD_MODULES = ("long_skip", "in_place", "repeated", "root_parameter", "shortcut")
NAMES = (*CONFIGS, "ctr", "sequential", *ODD_MODULES)


@cache
def source_of(name: str) -> ModelSource:
    """Source of a small model."""
    if name in CONFIGS:
        size = 32 if name in ("resnet", "convnext") else None
        length = None if name in IMAGE_MODELS else TOKENS
        return huggingface_source(CONFIGS[name], sequence_length=length, image_size=size)
    if name == "ctr":
        return ModelSource(
            kind="factory",
            factory="heterps_runtime.examples.ctr:click_through_tiny",
            inputs=(
                InputSpecification(
                    name="sparse", shape=(NUM_TABLES,), dtype="int64", num_classes=1000
                ),
                InputSpecification(name="dense", shape=(NUM_DENSE,)),
            ),
            target=InputSpecification(name="click", shape=(1,), num_classes=2),
            loss="binary_cross_entropy",
        )
    if name in functional_models.INPUTS:
        return factory_source(
            f"{functional_models.__name__}:{name}", functional_models.INPUTS[name]
        )
    return factory_source(f"{HERE}:{name}", [f"x={WIDTH}:float32"])


@cache
def profile_of(name: str) -> ModelProfile:
    """Traced profile of a small model."""
    return trace_source(source_of(name), name)


def sequential() -> nn.Sequential:
    """Unequal linear layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(WIDTH, 16),
        nn.ReLU(),
        nn.Linear(16, 24),
        nn.ReLU(),
        nn.Linear(24, 5),
    )


def in_place() -> nn.Sequential:
    """Activations that write into their input, and one layer that does nothing."""
    return nn.Sequential(
        nn.Linear(WIDTH, 16), nn.ReLU(inplace=True), nn.Identity(), nn.Linear(16, 5),
        nn.Hardtanh(inplace=True), nn.Linear(5, 5),
    )  # fmt: skip


class _Blocks(nn.Module):
    def __init__(self, forward: Callable[[_Blocks, Tensor], Tensor]) -> None:
        super().__init__()
        self.start = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)
        )
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.end = nn.Linear(WIDTH, 5)
        self._run = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._run(self, x)


def long_skip() -> nn.Module:
    """The first layer's output goes to the last layer, too."""

    def run(self: _Blocks, x: Tensor) -> Tensor:
        first = x = self.start(x)
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.end(x + first))

    return _Blocks(run)


def repeated() -> nn.Module:
    """One block runs twice, with another between."""

    def run(self: _Blocks, x: Tensor) -> Tensor:
        x = self.start(x)
        for block in (self.blocks[0], self.blocks[1], self.blocks[0]):
            x = block(x)
        return torch.as_tensor(self.end(x))

    return _Blocks(run)


def root_parameter() -> nn.Module:
    """Glue multiplies by a parameter of the model itself, at its beginning and near its end."""

    def run(self: _Blocks, x: Tensor) -> Tensor:
        x = self.start(x * self.scale)
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.end(x * self.scale.square()))

    return _Blocks(run)


def shortcut() -> nn.Module:
    """Residual additions in glue: what lies between them cannot be cut."""

    def run(self: _Blocks, x: Tensor) -> Tensor:
        x = self.start(x)
        for block in self.blocks:
            x = x + block(x)
        return torch.as_tensor(self.end(x))

    return _Blocks(run)


def tied() -> nn.Sequential:
    """Two layers that share one parameter object, which is registered before it has two owners."""
    shared = nn.Parameter(torch.zeros(4, 4))
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    first.weight, second.weight = shared, shared
    return nn.Sequential(first, second)


def single() -> nn.Module:
    """A model that is one module without children."""
    return nn.Linear(WIDTH, 3)


class _Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.fft.rfft(x).abs()
        return x


def spectrum() -> nn.Module:
    """A linear layer and Fourier transforms."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), _Spectrum())


class _WithBuffer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("ones", torch.ones(1024, 1024))


def large() -> nn.Sequential:
    """Sixteen GiB of parameters, in float32."""
    return nn.Sequential(nn.Embedding(2**29 + 1, 8), _WithBuffer())


def raises() -> nn.Module:
    """A factory that fails."""
    raise RuntimeError("no such thing\nsecond line")


def returns_number() -> int:
    """A factory that returns no module."""
    return 3


def fails_in_forward() -> nn.Module:
    """A model whose forward pass fails."""
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 4))


def initialise(module: nn.Module, seed: int) -> nn.Module:
    """Gives a whole module its initial parameters in place; tied parameters stay tied."""
    canonical = canonical_names(module)
    place(module, initial_values(module, list(canonical.values()), seed), canonical)
    return module
