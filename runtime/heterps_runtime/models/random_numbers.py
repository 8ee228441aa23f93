"""Random numbers of a forward pass that depend on what is computed, not on where.

Each unit call, and the model's own code after it, starts from a generator seeded with
(seed, step, micro-batch, call). So every plan, and training in one process with the same
micro-batches, draws the same dropout masks. Masks on the CPU and on a GPU differ: their generators
are different algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def random_numbers(
    key: tuple[int, int, int], device: torch.device
) -> Iterator[Callable[[int], None]]:
    """Yields what starts the numbers of one part of a pass; afterwards all is as it was before.

    Args:
        key: Seed, step and micro-batch.
        device: Where the pass computes.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    states = [generator.get_state() for generator in generators]
    # One hash for the pass; the calls of a pass are told apart by the golden ratio (Weyl sequence).
    words = np.random.SeedSequence([key[0] % 2**64, key[1], key[2]]).generate_state(1, np.uint64)
    start = int(words[0])

    def draw(part: int) -> None:
        number = (start + (part + 1) * 0x9E3779B97F4A7C15) % 2**63
        for generator in generators:
            generator.manual_seed(number)

    try:
        draw(-1)
        yield draw
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def draws_numbers(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an operation draws random numbers; attention does only with dropout."""
    if torch.Tag.nondeterministic_seeded not in operation.tags:
        return False
    names = [argument.name for argument in operation._schema.arguments]
    if "dropout_p" not in names:
        return True
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return bool(given.get("dropout_p", 0.0))
