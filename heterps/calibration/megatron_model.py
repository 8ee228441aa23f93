"""A GPT as Megatron builds it, to be traced: what Sailor measured, layer by layer."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heterps_configs.documents.model.source import InputSpecification, ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.tracing.trace import trace


class MegatronShape(NamedTuple):
    """Sizes of a model; its blocks widen four times in the middle.

    Attributes:
        vocabulary_size: Tokens.
        sequence_length: Tokens of a sample.
        dropout: Share of numbers that are dropped, of attention, too.
        tensor_parallel: GPUs of a group, of which one is traced, without its sums over the group.
    """

    hidden_size: int
    num_heads: int
    vocabulary_size: int
    sequence_length: int = 2048
    dropout: float = 0.1
    tensor_parallel: int = 1

    @property
    def own_vocabulary_size(self) -> int:
        """Tokens of one GPU of a group."""
        return -(-self.vocabulary_size // self.tensor_parallel)


@lru_cache(maxsize=16)
def traced_megatron(shape: MegatronShape) -> ModelProfile:
    """A profile of embeddings, one block, and the head with its loss, in float32."""
    with torch.device("meta"):
        module = nn.Sequential(_Embeddings(shape), _Block(shape), _Head(shape))
    tokens = InputSpecification(
        name="tokens",
        shape=(shape.sequence_length,),
        dtype="int64",
        num_classes=shape.own_vocabulary_size,
    )
    source = ModelSource(
        kind="factory",
        factory=f"{__name__}:traced_megatron",
        inputs=(tokens,),
        target=tokens.changed(name="target"),
    )
    return trace(module, source, "megatron").changed(source=None)


class _Embeddings(nn.Module):
    def __init__(self, shape: MegatronShape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.own_vocabulary_size, shape.hidden_size)
        self.positions = nn.Embedding(shape.sequence_length, shape.hidden_size)
        self.dropout = nn.Dropout(shape.dropout) if shape.dropout else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) numbers of tokens; (B, S, H)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded: Tensor = self.dropout(self.words(tokens) + self.positions(places))
        return embedded


class _Block(nn.Module):
    """Scores go through memory: one product that scales, a mask, softmax, dropout."""

    def __init__(self, shape: MegatronShape) -> None:
        super().__init__()
        hidden, own = shape.hidden_size, shape.hidden_size // shape.tensor_parallel
        self.num_heads = shape.num_heads // shape.tensor_parallel
        self.attention_norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.queries_keys_values = nn.Linear(hidden, 3 * own)
        self.attention_output = nn.Linear(own, hidden)
        self.dropout = nn.Dropout(shape.dropout) if shape.dropout else nn.Identity()
        self.wider, self.narrower = nn.Linear(hidden, 4 * own), nn.Linear(4 * own, hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, S, H), as what comes out."""
        attended = self.attention_output(self._attention(self.attention_norm(hidden)))
        hidden = hidden + self.dropout(attended)
        wide = F.gelu(self.wider(self.mlp_norm(hidden)))
        added: Tensor = hidden + self.dropout(self.narrower(wide))
        return added

    def _attention(self, normed: Tensor) -> Tensor:
        batch, length, _ = normed.shape
        own = self.attention_output.in_features
        rows, size = batch * self.num_heads, own // self.num_heads
        parts = self.queries_keys_values(normed).view(batch, length, self.num_heads, 3 * size)
        queries, keys, values = (
            part.transpose(1, 2).reshape(rows, length, size) for part in parts.chunk(3, dim=-1)
        )
        room = torch.empty(rows, length, length, dtype=queries.dtype, device=queries.device)
        scores = torch.baddbmm(
            room, queries, keys.transpose(1, 2), beta=0.0, alpha=1 / math.sqrt(size)
        )
        later = torch.ones(length, length, dtype=torch.bool, device=queries.device).triu(1)
        shares = self.dropout(F.softmax(scores.masked_fill(later, -1e4), dim=-1))
        mixed = torch.bmm(shares, values).view(batch, self.num_heads, length, size)
        return mixed.transpose(1, 2).reshape(batch, length, own)


class _Head(nn.Module):
    def __init__(self, shape: MegatronShape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.hidden_size)
        self.logits = nn.Linear(shape.hidden_size, shape.own_vocabulary_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, S, H); (B, S, V)."""
        logits: Tensor = self.logits(self.norm(hidden))
        return logits
