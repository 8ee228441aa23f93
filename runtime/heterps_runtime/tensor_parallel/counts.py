"""Attributes of modules that may count what a rank has a part of."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

from torch import nn

from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit

# The likeliest first.
_COUNTS = (
    "split_size", "num_heads", "num_attention_heads", "n_heads", "n_head", "num_key_value_heads",
    "num_kv_heads", "num_key_value_groups", "all_head_size", "inner_dim", "embed_dim",
    "hidden_size", "intermediate_size",
)  # fmt: skip
_MOST_COUNTS = 3


def subsets_of_counts(part: nn.Module, split: ParameterSplit) -> Iterator[tuple[str, ...]]:
    """Attributes that may be counts, in the order in which they are tried.

    Args:
        part: Has the attributes.
        split: Of its parameters.
    """
    found = [
        name
        for name in _COUNTS
        if isinstance(vars(part).get(name), int) and split.may_count(name, vars(part)[name])
    ]
    return chain.from_iterable(
        combinations(found, size) for size in range(1, min(len(found), _MOST_COUNTS) + 1)
    )
