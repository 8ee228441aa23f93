"""The batches that one rank's executor computes with, where it computes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

from heterps_runtime.specification.devices import to_device
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.training.batches import Batch, BatchSource, Needs, SyntheticBatches
from heterps_runtime.training.prefetching import Prefetched
from heterps_runtime.training.prepared import batches_of, evaluation_batches
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.training.read_by_workers import ReadByWorkers
from heterps_runtime.training.sample_order import Position


class Fed(Protocol):
    """What computes with batches.

    Attributes:
        num_samples: Of the next step, on all devices together.
    """

    num_samples: int

    @property
    def needs(self) -> Needs:
        """What it reads."""
        ...


class DataFeed:
    """Batches by step, a user's read ahead.

    Args:
        batches: Where they come from.
        fed: What computes with them; it is told how many samples a step has.
        device: Where that is.
        stop: The step behind the last one.
        num_workers: Processes that read the next ones; 0: a thread does. None: nothing is read
            ahead.
    """

    def __init__(
        self,
        batches: BatchSource,
        fed: Fed,
        device: torch.device,
        stop: int,
        num_workers: int | None,
    ) -> None:
        self._batches, self._fed, self._device = batches, fed, device
        self._needs = fed.needs
        self._ahead: Prefetched | ReadByWorkers | None = None
        if num_workers:
            self._ahead = ReadByWorkers(batches, self._needs, stop, num_workers)
        elif num_workers is not None:
            self._ahead = Prefetched(batches, self._needs, stop)

    @classmethod
    def of_training(
        cls,
        program: TrainingProgram,
        specification: RunSpecification,
        fed: Fed,
        device: torch.device,
    ) -> DataFeed:
        """The batches of a run's steps."""
        source = specification.profile.source
        assert source is not None
        batches = batches_of(
            program,
            source,
            specification.plan.job,
            specification.seed,
            specification.data_origin,
        )
        num_workers = None if program.data is None else program.num_workers
        return cls(batches, fed, device, specification.num_steps, num_workers)

    @classmethod
    def of_evaluation(
        cls,
        program: TrainingProgram,
        specification: RunSpecification,
        fed: Fed,
        device: torch.device,
    ) -> tuple[DataFeed, int]:
        """The batches of one evaluation, and how many they are."""
        source = specification.profile.source
        assert source is not None
        batches, number = evaluation_batches(program, source, specification.plan.job)
        return cls(batches, fed, device, number, program.num_workers), number

    def of_step(self, step: int) -> dict[int, Batch]:
        """What the rank computes with in a step."""
        if self._ahead is None:
            found = self._batches.read(step, self._needs)
        else:
            found = self._ahead.of_step(step)
        self._fed.num_samples = found.num_samples
        return to_device(found.batches, self._device)

    def position(self, step: int) -> Position | None:
        """How far training is in a user's data before a step."""
        return self._batches.position(step)

    def close(self) -> None:
        """Reads nothing more."""
        if self._ahead is not None:
            self._ahead.close()


def micro_batches(
    specification: RunSpecification, step: int, indices: Iterable[int]
) -> dict[int, Batch]:
    """Inputs and target of some synthetic micro-batches of one step, by index."""
    source = specification.profile.source
    assert source is not None
    batches = SyntheticBatches(source, specification.plan.job, specification.seed)
    return batches.read(step, Needs.all_of(list(indices))).batches
