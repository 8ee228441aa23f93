"""A second part for development: problems of the same kinds as the forty, drawn with a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.strategy.cases import A40G, A100, H100, V16, V100, Between, Case, Inside, Nodes

SEED, NUM_DRAWN = 17, 40
_PCIE_TYPES = ("A10G", "L4", "RTX-4090", "RTX-3090", "T4")


class _Kind(NamedTuple):
    """What problems of a model are drawn from.

    Attributes:
        batches: Samples of a step.
        kinds: Device types.
        numbers: Of nodes, in all.
        sizes: Devices of a node.
        between: Links between nodes.
    """

    batches: tuple[int, ...]
    kinds: tuple[str, ...]
    numbers: tuple[int, ...]
    sizes: tuple[int, ...]
    between: tuple[Between, ...]


_LARGE = (H100, A100, A40G)
_SLOW: tuple[Between, ...] = ("25g", "100g")
_FAST: tuple[Between, ...] = ("100g", "infiniband")
_KINDS: Mapping[str, _Kind] = {
    "7b": _Kind((64, 128, 256), (*_LARGE, V100, "A10G"), (2, 3, 4, 8), (4, 8), _SLOW),
    "13b": _Kind((128, 256), (*_LARGE, V100, *_PCIE_TYPES[:3]), (4, 6, 8), (8,), _SLOW),
    "70b": _Kind((64, 128, 256, 512), _LARGE, (4, 6, 8, 16, 64), (8,), _FAST),
    "mixtral": _Kind((128, 256), _LARGE, (4, 6, 8, 12), (8,), _FAST),
    "gpt2-xl": _Kind((128, 256), (A40G, V100, V16, *_PCIE_TYPES), (2, 3, 4, 8), (4, 8), _SLOW),
    "vit-h": _Kind((256, 512), (A40G, V100, V16, *_PCIE_TYPES), (2, 3, 4, 8), (4, 8), _SLOW),
}  # fmt: skip


def drawn_cases(seed: int = SEED, number: int = NUM_DRAWN) -> tuple[Case, ...]:
    """Every second one is mixed, with two or three device types; the models take turns."""
    rng, models = random.Random(seed), tuple(_KINDS)
    return tuple(
        _drawn(rng, models[index % len(models)], is_mixed=(index // len(models)) % 2 == 1)
        for index in range(number)
    )


def _drawn(rng: random.Random, model: str, is_mixed: bool) -> Case:
    allowed = _KINDS[model]
    number, batch = rng.choice(allowed.numbers), rng.choice(allowed.batches)
    kinds = rng.sample(allowed.kinds, rng.choice((2, 3)) if is_mixed else 1)
    kinds = kinds[:number]
    rest, nodes = number, list[Nodes]()
    for index, kind in enumerate(kinds):
        others = len(kinds) - index - 1
        share = rest if others == 0 else rng.randint(1, rest - others)
        inside: Inside = "pcie" if kind in _PCIE_TYPES or rng.random() < 0.2 else "nvlink"
        nodes.append(Nodes(share, rng.choice(allowed.sizes), kind, inside))
        rest -= share
    return Case(model, batch, tuple(nodes), rng.choice(allowed.between))
