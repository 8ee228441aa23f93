"""The micro-batches of a step: every rank makes those that it computes, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from torch import Tensor

from heterps_runtime.models.data import make_batch
from heterps_runtime.specification.run import RunSpecification

Batch = tuple[dict[str, Tensor], Tensor]


def micro_batches(
    specification: RunSpecification, step: int, indices: Iterable[int]
) -> dict[int, Batch]:
    """Inputs and target of some micro-batches of one step, by index."""
    job, source = specification.plan.job, specification.profile.source
    assert source is not None
    sizes = job.micro_batch_sizes
    starts = [0, *accumulate(sizes)]
    return {
        index: make_batch(
            source, step, sizes[index], specification.seed, first_sample=starts[index]
        )
        for index in indices
    }
