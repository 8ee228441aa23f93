"""Samples of a user's data set, by step: by index, or in a row.

Beside `__getitem__`, a data set may have `__getitems__` (several at once), and `inputs_at` and
`target_at`: then a rank that needs only one of the two reads only that.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.training.collating import collate_samples
from heterps_runtime.training.model_inputs import as_inputs, as_target
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.training.sample_order import Position, SampleOrder

_NO_TARGET = torch.empty(0)
# Not empty in a process that does nothing but read samples.
_OWN_DRAWS: list[bool] = []


class DueSamples(Protocol):
    """The samples of one step.

    Attributes:
        num_samples: Of the whole step.
    """

    num_samples: int

    def read(
        self, rows: Sequence[int], *, needs_inputs: bool, needs_target: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Inputs and target of some of them; without those that are not needed."""
        ...


class Samples(Protocol):
    """A data set, step by step."""

    def position(self, step: int) -> Position | None:
        """How far training is before a step; None where that is not known beforehand."""
        ...

    def of_step(self, step: int) -> Any:
        """A context manager with the step's `DueSamples`."""
        ...


def divided(batch: Any, target: str) -> tuple[Any, Any]:
    """Inputs and target of a batch that was collated.

    Args:
        batch: A pair, or a mapping.
        target: Key of the target in a mapping.

    Raises:
        HeterpsError: It is something else, or has no target.
    """
    if isinstance(batch, Mapping):
        if target not in batch:
            raise HeterpsError(
                f"data: a sample has no {target!r}, but {', '.join(map(str, batch))}; name the "
                "target's key as `target`"
            )
        return {key: value for key, value in batch.items() if key != target}, batch[target]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise HeterpsError(
        f"data: a sample must be inputs and target, or a mapping; a batch is {type(batch).__name__}"
    )


class _Batching:
    """How batches are made of samples."""

    def __init__(self, program: TrainingProgram, data: Any, source: ModelSource) -> None:
        self.data, self._source = data, source
        self._collate, self._target = program.collate, program.target
        self._has_own_loss = program.loss is not None
        self._takes_columns = program.collate is collate_samples
        self._columns = {program.target, *(entry.name for entry in source.inputs)}
        self.has_parts = (
            hasattr(data, "inputs_at") and hasattr(data, "target_at")
            and program.collate is collate_samples
        )  # fmt: skip

    def batch(
        self, samples: list[Any], *, needs_inputs: bool, needs_target: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Of whole samples."""
        if self._takes_columns and isinstance(samples[0], Mapping):
            # Others may hold what is no number.
            wanted = [key for key in samples[0] if key in self._columns]
            samples = [{key: sample[key] for key in wanted} for sample in samples]
        inputs, target = divided(self._collate(samples), self._target)
        return (
            self.inputs(inputs) if needs_inputs else {},
            self.target(target) if needs_target else _NO_TARGET,
        )

    def inputs(self, found: Any) -> dict[str, Tensor]:
        return as_inputs(found, self._source)

    def target(self, found: Any) -> Tensor:
        return as_target(found, None if self._has_own_loss else self._source.target)


class IndexedSamples:
    """A data set with samples by index (also of Hugging Face, and of torch).

    Args:
        program: How batches are made.
        data: The data set.
        source: Of the model.
        order: Which are due.
    """

    def __init__(
        self, program: TrainingProgram, data: Any, source: ModelSource, order: SampleOrder
    ) -> None:
        order.check()
        self._batching, self._order = _Batching(program, data, source), order

    def position(self, step: int) -> Position | None:
        """See `Samples`."""
        return self._order.position(step)

    @contextmanager
    def of_step(self, step: int) -> Iterator[DueSamples]:
        """See `Samples`."""
        draws = (self._order.seed, step) if _OWN_DRAWS else None
        yield _Indexed(self._batching, self._order.indices(step), draws)


class _Indexed:
    """Some samples by index.

    Args:
        batching: How batches are made.
        indices: Of the whole step.
        draws: Seed and step that the random numbers of a sample are a function of; None: nobody's
            generators are touched.
    """

    def __init__(
        self, batching: _Batching, indices: Sequence[int], draws: tuple[int, int] | None
    ) -> None:
        self._batching, self._indices, self.num_samples = batching, indices, len(indices)
        self._draws = draws

    def read(
        self, rows: Sequence[int], *, needs_inputs: bool, needs_target: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        if not needs_inputs and not needs_target:
            return {}, _NO_TARGET
        batching, data = self._batching, self._batching.data
        at = self._drawing
        indices = [self._indices[row] for row in rows]
        if batching.has_parts and not (needs_inputs and needs_target):
            if needs_inputs:
                found = [at(data.inputs_at, index) for index in indices]
                return batching.inputs(collate_samples(found)), _NO_TARGET
            found = [at(data.target_at, index) for index in indices]
            return {}, batching.target(collate_samples(found))
        together = getattr(data, "__getitems__", None)
        if together is None:
            samples = [at(data.__getitem__, index) for index in indices]
        else:
            samples = at(together, indices)
        return batching.batch(samples, needs_inputs=needs_inputs, needs_target=needs_target)

    def _drawing(self, read: Callable[[Any], Any], index: int | list[int]) -> Any:
        """What `read` returns, with random numbers of its own."""
        if self._draws is not None:
            first = index if isinstance(index, int) else index[0]
            seed_draws((*self._draws, first))
        return read(index)


def reads_only() -> None:
    """Says that this process does nothing but read samples: its generators are theirs."""
    _OWN_DRAWS.append(True)


def seed_draws(numbers: Sequence[int]) -> None:
    """Makes what this process draws from here on a function of some numbers."""
    words = np.random.SeedSequence(tuple(numbers)).generate_state(4)
    # `torch.manual_seed` would remember each for GPUs, which no worker uses.
    torch.default_generator.manual_seed(int(words[0]))
    np.random.seed(words[1:3])  # noqa: NPY002  (data sets draw from it)
    random.seed(int(words[3]))


class SamplesInARow:
    """A data set that is read from the front (`__iter__`), the same way each time.

    Every rank that needs samples goes through all of them, and makes batches of its own. To go on
    in the middle, it skips what is done (`skip(n)` of the data set, where it has that). Where it
    has `set_epoch`, that is called before each epoch.

    Args:
        program: How batches are made.
        data: The data set.
        source: Of the model.
        batch_size: Samples of a step.
    """

    def __init__(
        self, program: TrainingProgram, data: Any, source: ModelSource, batch_size: int
    ) -> None:
        self._batching, self._batch_size = _Batching(program, data, source), batch_size
        self._drop_last = program.drop_last
        self._lock = threading.Lock()
        self._step, self._batches = 0, self._all_batches()

    def position(self, step: int) -> Position | None:
        """See `Samples`: whoever goes on skips what is done."""
        return None

    @contextmanager
    def of_step(self, step: int) -> Iterator[DueSamples]:
        """See `Samples`."""
        with self._lock:
            if step < self._step:
                self._step, self._batches = 0, self._all_batches()
            if self._step == 0 < step:
                self._skip_to(step)
            for _ in range(step - self._step):
                next(self._batches)
            found = next(self._batches)
            self._step = step + 1
        yield _InARow(self._batching, found)

    def _skip_to(self, step: int) -> None:
        """As far as the first epoch reaches; beyond it, all is gone through."""
        skip = getattr(self._batching.data, "skip", None)
        if skip is None:
            return
        rest = iter(skip(step * self._batch_size))
        first = list(islice(rest, self._batch_size))
        if len(first) == self._batch_size:
            self._step, self._batches = step, self._all_batches(first, rest)

    def _all_batches(
        self, first: list[Any] | None = None, rest: Iterator[Any] | None = None
    ) -> Iterator[list[Any]]:
        """Epoch after epoch, from a place in the first one."""
        data, epoch = self._batching.data, 0
        if first is not None:
            yield first
        while True:
            if hasattr(data, "set_epoch") and rest is None:
                data.set_epoch(epoch)
            found, has_any = rest or iter(data), rest is not None
            while samples := list(islice(found, self._batch_size)):
                if len(samples) < self._batch_size and self._drop_last:
                    break
                has_any = True
                yield samples
            if not has_any:
                raise HeterpsError("data: has no batch; it is empty, or drop_last leaves all out")
            rest, epoch = None, epoch + 1


class _InARow:
    def __init__(self, batching: _Batching, samples: list[Any]) -> None:
        self._batching, self._samples, self.num_samples = batching, samples, len(samples)

    def read(
        self, rows: Sequence[int], *, needs_inputs: bool, needs_target: bool
    ) -> tuple[dict[str, Tensor], Tensor]:
        if not needs_inputs and not needs_target:
            return {}, _NO_TARGET
        samples = [self._samples[row] for row in rows]
        return self._batching.batch(samples, needs_inputs=needs_inputs, needs_target=needs_target)


def samples_of(
    program: TrainingProgram, data: Any, source: ModelSource, order: SampleOrder
) -> Samples:
    """The samples of a data set; `order` says how many a step has."""
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return IndexedSamples(program, data, source, order._replace(num_samples=len(data)))
    return SamplesInARow(program, data, source, order.batch_size)
