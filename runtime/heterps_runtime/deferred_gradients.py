"""Deferred weight gradients: the half of a backward pass that nobody waits for.

A zero-bubble schedule (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2) sends the
gradients of a stage's inputs on before it computes those of its weights. Here the backward pass of
a linear layer or convolution computes the first, and leaves the second as a job: the way of
Megatron's weight gradient store. No graph is walked twice, and all other parameters (biases of
normalisations, embeddings) get their gradients at once, because they cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Key = tuple[str, int]  # stage, micro-batch
Job = Callable[[], None]


class DeferredGradients:
    """The jobs that backward passes have left, by stage and micro-batch."""

    def __init__(self) -> None:
        self._jobs: dict[Key, list[Job]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @contextmanager
    def collecting(self, key: Key) -> Iterator[None]:
        """Backward passes inside leave their weight gradients to `compute(key)`."""
        yield

    def compute(self, key: Key) -> None:
        """Does the jobs of one stage and micro-batch."""
        for job in self._jobs.pop(key, ()):
            job()
