"""Families of layers, by the name of their module class: layers of one share efficiencies."""

from __future__ import annotations

import re
from functools import lru_cache

# A layer belongs to the first family whose pattern its kind contains: the heaviest comes first,
# since a kind may be several module classes joined by `+`.
_FAMILIES = (
    ("convolution", re.compile("conv|resnet")),
    ("attention block", re.compile("attention|block|layer(?!norm)")),
    ("linear", re.compile("linear|dense|head")),
    ("embedding", re.compile("embedding")),
    ("normalisation", re.compile("norm")),
)


@lru_cache(maxsize=1024)
def layer_family(kind: str) -> str:
    """The family of a layer, by the name of its module class; layers of one share efficiencies."""
    name = kind.lower()
    return next((family for family, found in _FAMILIES if found.search(name)), "other")
