"""The batches of a step: each rank reads, of those micro-batches that it computes, its part.

A stage that is not the first needs a micro-batch's inputs only where the model's own code computes
with them between its layers; the target is the last stage's alone. Of an incomplete batch, targets
are those of the samples that there are, while inputs are filled up with a sample that counts for
nothing: all messages keep their size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from heterps_configs.documents.job import Job
from heterps_configs.documents.model.source import ModelSource
from heterps_runtime.models.data import make_batch
from heterps_runtime.training.sample_order import Position
from heterps_runtime.training.samples import Samples

# Inputs by name, and the target.
Batch = tuple[dict[str, Tensor], Tensor]


class Needs(NamedTuple):
    """What a rank reads of a step.

    Attributes:
        micro_batches: Those that it computes.
        inputs: Of them, those whose inputs it computes with.
        targets: Of them, those whose loss it computes.
    """

    micro_batches: frozenset[int] = frozenset()
    inputs: frozenset[int] = frozenset()
    targets: frozenset[int] = frozenset()

    @classmethod
    def all_of(cls, micro_batches: Collection[int]) -> Needs:
        """Inputs and targets of some micro-batches."""
        own = frozenset(micro_batches)
        return cls(own, own, own)


class StepBatches(NamedTuple):
    """What a rank has read of a step.

    Attributes:
        batches: By the number of the micro-batch.
        num_samples: Of the whole step, on all ranks together.
    """

    batches: dict[int, Batch]
    num_samples: int


class BatchSource(Protocol):
    """Where batches come from."""

    def read(self, step: int, needs: Needs) -> StepBatches:
        """A rank's part of a step."""
        ...

    def position(self, step: int) -> Position | None:
        """How far training is in the data before a step; None where only the step counts."""
        ...


class SyntheticBatches(NamedTuple):
    """Batches that are drawn (`heterps_runtime.models.data`): a rank makes what it computes.

    Attributes:
        source: Of the model.
        job: Sizes.
        seed: Of the run.
    """

    source: ModelSource
    job: Job
    seed: int

    def position(self, step: int) -> Position | None:
        """See `BatchSource`."""
        return None

    def read(self, step: int, needs: Needs) -> StepBatches:
        """See `BatchSource`."""
        sizes = self.job.micro_batch_sizes
        starts = first_samples(sizes)
        batches = {
            index: make_batch(self.source, step, sizes[index], self.seed, starts[index])
            for index in needs.micro_batches
        }
        return StepBatches(batches, self.job.global_batch_size)


class ReadBatches(NamedTuple):
    """Batches of a user's data set.

    Attributes:
        samples: Of the data set, by step.
        source: Of the model: what it takes.
        job: Sizes.
    """

    samples: Samples
    source: ModelSource
    job: Job

    def position(self, step: int) -> Position | None:
        """See `BatchSource`."""
        return self.samples.position(step)

    def read(self, step: int, needs: Needs) -> StepBatches:
        """See `BatchSource`."""
        sizes, starts = self.job.micro_batch_sizes, first_samples(self.job.micro_batch_sizes)
        spans = {
            index: range(starts[index], starts[index] + sizes[index])
            for index in needs.micro_batches
        }
        batches: dict[int, Batch] = {}
        with self.samples.of_step(step) as due:
            for index, span in spans.items():
                rows = [row for row in span if row < due.num_samples]
                inputs, target = due.read(
                    rows or [0], needs_inputs=index in needs.inputs,
                    needs_target=index in needs.targets,
                )  # fmt: skip
                if index in needs.inputs:
                    batches[index] = self._filled(inputs, len(span)), target[: len(rows)]
                else:
                    batches[index] = self._stand_ins(len(span)), target[: len(rows)]
            return StepBatches(batches, due.num_samples)

    def _filled(self, inputs: dict[str, Tensor], size: int) -> dict[str, Tensor]:
        """Inputs of a whole micro-batch: the first sample stands in for those that are missing."""
        missing = size - len(next(iter(inputs.values())))
        if not missing:
            return inputs
        return {
            name: torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])
            for name, tensor in inputs.items()
        }

    def _stand_ins(self, size: int) -> dict[str, Tensor]:
        """Inputs that nobody computes with: they have a shape, and no memory."""
        return {
            entry.name: torch.zeros((), dtype=getattr(torch, entry.dtype)).expand(
                size, *entry.shape
            )
            for entry in self.source.inputs
        }


def first_samples(sizes: Sequence[int]) -> list[int]:
    """Of each micro-batch, its first sample in the step's batch."""
    return [0, *accumulate(sizes)]
