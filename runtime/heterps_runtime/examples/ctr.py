"""Click-through-rate prediction in the shape of DLRM: `heterps_runtime.examples.ctr:click_through`.

26 sparse features with an embedding table each, 13 numbers through a bottom tower, dot products of
all pairs, a top tower (Naumov et al., Deep Learning Recommendation Model, 2019). Every table and
every module is a layer that a plan can place, because what flows between them are whole tensors.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

NUM_TABLES = 26
NUM_DENSE = 13


class Interaction(nn.Module):
    """Dot products of all pairs of feature vectors, beside the dense vector itself."""

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        self.num_vectors = num_vectors

    def forward(self, dense: Tensor, embedded: list[Tensor]) -> Tensor:
        """Returns (B, width + pairs) of (B, width) vectors."""
        vectors = torch.stack([dense, *embedded], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        rows, columns = torch.tril_indices(
            self.num_vectors, self.num_vectors, -1, device=dense.device
        )
        return torch.cat([dense, products[:, rows, columns]], dim=1)


class ClickThrough(nn.Module):
    """The model.

    Args:
        rows: Entries of each embedding table.
        width: Of the embeddings and of the bottom tower's output.
        bottom: Hidden sizes of the bottom tower.
        top: Hidden sizes of the top tower.
    """

    def __init__(
        self, rows: list[int], width: int, bottom: tuple[int, ...], top: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, width) for count in rows)
        self.bottom = tower((NUM_DENSE, *bottom, width), ends_with_activation=True)
        vectors = len(rows) + 1
        self.interaction = Interaction(vectors)
        self.top = tower((width + vectors * (vectors - 1) // 2, *top, 1))

    def forward(self, sparse: Tensor, dense: Tensor) -> Tensor:
        """Logits (B, 1) of whole numbers (B, tables) and numbers (B, 13)."""
        embedded = [table(sparse[:, index]) for index, table in enumerate(self.tables)]
        logits: Tensor = self.top(self.interaction(self.bottom(dense), embedded))
        return logits


def tower(widths: tuple[int, ...], ends_with_activation: bool = False) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*(layers if ends_with_activation else layers[:-1]))


def click_through() -> ClickThrough:
    """26 tables of 1,000,000 rows, 64 wide: 1.7 billion parameters, nearly all of them sparse."""
    return ClickThrough([1_000_000] * NUM_TABLES, 64, (512, 256), (1024, 1024, 512, 256))


def click_through_tiny() -> ClickThrough:
    """26 tables of 1,000 rows, 16 wide: the same shape for a laptop."""
    return ClickThrough([1_000] * NUM_TABLES, 16, (64, 32), (128, 64))
