"""The micro-batches of a step: every rank makes those that it computes, and no others."""

from __future__ import annotations

from collections.abc import Iterable

from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.training.batches import Batch, Needs, SyntheticBatches


def micro_batches(
    specification: RunSpecification, step: int, indices: Iterable[int]
) -> dict[int, Batch]:
    """Inputs and target of some synthetic micro-batches of one step, by index."""
    source = specification.profile.source
    assert source is not None
    batches = SyntheticBatches(source, specification.plan.job, specification.seed)
    return batches.read(step, Needs.all_of(list(indices))).batches
