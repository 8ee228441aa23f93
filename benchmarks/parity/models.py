"""Models of the parity benchmark: all kinds that the runtime trains, small enough for many runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.fidelity.own_models import EMULATED
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.trace import trace_source

HERE = "benchmarks.parity.models"
WIDTH = 16


def _decoder(model_type: str, **config: int) -> ModelSource:
    """Eight heads, two of which share keys and values."""
    return huggingface_source(
        {
            "model_type": model_type,
            "hidden_size": 128,
            "intermediate_size": 192,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 256,
            **config,
        },
        sequence_length=16,
    )


def _t5() -> ModelSource:
    """Encoder and decoder: what the encoder returns passes every cut of the decoder."""
    config = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 3,
        "num_heads": 4,
        "vocab_size": 256,
        "dropout_rate": 0.0,
        # Attention without scaling: at the usual size rounding errors of float32 grow with depth.
        "initializer_factor": 0.3,
    }
    return huggingface_source(config, sequence_length=16)


def sequential() -> nn.Sequential:
    """Linear layers of unequal width."""
    widths = (WIDTH, 48, 24, 64, 32, 8)
    return nn.Sequential(
        *(part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.Tanh()))
    )


def dropping() -> nn.Sequential:
    """Dropout, and frozen layers at the front and in the middle."""
    module = nn.Sequential(
        nn.Linear(WIDTH, 48), nn.Dropout(0.3), nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 32),
        nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 24), nn.Linear(24, 8),
    )  # fmt: skip
    for frozen in (0, 4):
        module[frozen].requires_grad_(False)
    return module


class _Pair(nn.Module):
    """Takes and returns a dictionary that holds a tuple: two tensors cross every cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, state: dict[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
        a, b = state["pair"]
        return {"pair": (torch.tanh(self.first(a) + b), a + self.second(b))}


class _Structured(nn.Module):
    """Dictionaries and tuples between layers, and a tensor of the front that the end needs."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(_Pair() for _ in range(6))
        self.end = nn.Linear(WIDTH, 8)

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.start(x)
        state = {"pair": (skipped, skipped)}
        for block in self.blocks:
            state = block(state)
        a, b = state["pair"]
        result: Tensor = self.end(a + b + skipped)
        return result


def structured() -> nn.Module:
    """Tuples in dictionaries at the cuts, and a skip over all of them."""
    return _Structured()


def _own(name: str) -> Callable[[], ModelSource]:
    return lambda: factory_source(f"{HERE}:{name}", [f"x={WIDTH}:float32"])


SOURCES: dict[str, Callable[[], ModelSource]] = {
    **{case.name: case.source for case in EMULATED},
    "llama, grouped queries": lambda: _decoder("llama"),
    "mixtral": lambda: _decoder("mixtral", num_local_experts=4, num_experts_per_tok=2),
    "t5": _t5,
    "sequential": _own("sequential"),
    "tuples, dicts, skip": _own("structured"),
    "dropout, frozen": _own("dropping"),
}


@cache
def profile_of(name: str) -> ModelProfile:
    """The traced layers of a model."""
    return trace_source(SOURCES[name](), name)
