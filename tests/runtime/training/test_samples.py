"""What a rank reads of a data set: its part, in the model's names and formats, and no more."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from heterps_configs.documents.job import Job
from heterps_configs.documents.model.source import InputSpecification, ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.training.batches import Needs, ReadBatches
from heterps_runtime.training.prefetching import Prefetched
from heterps_runtime.training.prepared import batches_of
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.training.read_by_workers import ReadByWorkers

MISSING = object()
JOB = Job(global_batch_size=6, micro_batch_size=2, dtype="float32", optimizer="sgd")
SOURCE = ModelSource(
    kind="factory",
    factory="a:b",
    inputs=(
        InputSpecification(name="tokens", shape=(3,), dtype="int64", num_classes=9),
        InputSpecification(name="weight", dtype="float32"),
    ),
    target=InputSpecification(name="target", dtype="int64", num_classes=9),
)


class Rows:
    """By index; remembers what was read."""

    def __init__(self, num_samples: int = 8) -> None:
        self.num_samples = num_samples
        self.read: list[int] = []

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        return {
            "tokens": np.full(3, index, np.int32), "weight": index / 2, "labels": index,
            "text": "not for the model",
        }  # fmt: skip


class InParts(Rows):
    """Inputs and targets can be read one without the other."""

    def inputs_at(self, index: int) -> dict[str, Any]:
        return {"tokens": [index] * 3, "weight": index / 2}

    def target_at(self, index: int) -> int:
        return index


class InARow:
    """Without a length; counts how often it was begun."""

    num_begun = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.num_begun += 1
        rows = Rows()
        return (rows[index] for index in range(8))


class WithSkip(InARow):
    """The same, which can begin in the middle."""

    skipped: int | None = None

    def skip(self, number: int) -> Iterator[dict[str, Any]]:
        self.skipped = number
        rows = Rows()
        return (rows[index] for index in range(number, 8))


def _batches(data: Any, **options: Any) -> ReadBatches:
    program = TrainingProgram(data=data, **{"shuffle": False, **options})
    found = batches_of(program, SOURCE, JOB, seed=0)
    assert isinstance(found, ReadBatches)
    return found


def _targets(batches: ReadBatches, step: int, *numbers: int) -> list[list[int]]:
    read = batches.read(step, Needs.all_of(numbers)).batches
    return [read[number][1].tolist() for number in numbers]


def test_a_rank_reads_its_micro_batches_and_no_others() -> None:
    data = Rows()
    needs = Needs(frozenset({0, 1, 2}), frozenset({1}), frozenset({2}))
    read = _batches(data).read(0, needs)
    assert data.read == [2, 3, 4, 5]
    inputs, target = read.batches[1]
    torch.testing.assert_close(inputs["tokens"], torch.tensor([[2] * 3, [3] * 3]))
    torch.testing.assert_close(inputs["weight"], torch.tensor([1.0, 1.5]))
    assert len(target) == 0
    inputs, target = read.batches[2]
    assert inputs["tokens"].shape == (2, 3)
    assert inputs["tokens"].untyped_storage().nbytes() == 8, "nobody reads it: it has no memory"
    assert target.tolist() == [4, 5]


def test_inputs_and_targets_are_read_alone_where_the_data_can_do_that() -> None:
    data = InParts()
    needs = Needs(frozenset({0, 1}), frozenset({0}), frozenset({1}))
    read = _batches(data).read(0, needs).batches
    assert data.read == []
    assert read[0][0]["tokens"].tolist() == [[0] * 3, [1] * 3]
    assert read[1][1].tolist() == [2, 3]


@pytest.mark.parametrize("data", [Rows(), InARow()])
def test_an_incomplete_batch_has_whole_inputs_and_the_targets_that_there_are(data: Any) -> None:
    batches = _batches(data)
    read = batches.read(1, Needs.all_of([0, 1, 2]))
    assert read.num_samples == 2
    assert [len(target) for _, target in read.batches.values()] == [2, 0, 0]
    assert {len(inputs["tokens"]) for inputs, _ in read.batches.values()} == {2}
    assert _targets(batches, 2, 0) == [[0, 1]], "the next epoch"
    dropping = _batches(data, drop_last=True)
    assert _targets(dropping, 1, 0) == [[0, 1]]


@pytest.mark.parametrize("kind", [InARow, WithSkip])
def test_rows_go_on_anywhere(kind: type[InARow]) -> None:
    expected = [_targets(_batches(kind()), step, 0, 1, 2) for step in range(5)]
    in_order = _batches(kind())
    assert [_targets(in_order, step, 0, 1, 2) for step in range(5)] == expected
    assert _targets(in_order, 1, 0, 1, 2) == expected[1], "back"
    assert expected[3] == [[6, 7], [], []]


def test_rows_that_can_skip_do() -> None:
    data = WithSkip()
    many = Job(global_batch_size=2, micro_batch_size=2, dtype="float32", optimizer="sgd")
    found = batches_of(TrainingProgram(data=data), SOURCE, many, seed=0)
    assert found.read(2, Needs.all_of([0])).batches[0][1].tolist() == [4, 5]
    assert data.skipped == 4
    assert found.read(3, Needs.all_of([0])).batches[0][1].tolist() == [6, 7]
    assert found.read(4, Needs.all_of([0])).batches[0][1].tolist() == [0, 1]


def test_batches_are_read_ahead_in_order_and_an_error_comes_with_its_step() -> None:
    data = Rows(13)
    ahead = Prefetched(_batches(data), Needs.all_of([0, 1, 2]), stop=3)
    assert [ahead.of_step(step).num_samples for step in range(3)] == [6, 6, 1]
    assert sorted(set(data.read)) == list(range(13)), "and none behind the last step"
    ahead.close()

    class Broken(Rows):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 7:
                raise OSError("no such disk")
            return super().__getitem__(index)

    broken = Prefetched(_batches(Broken()), Needs.all_of([0]), stop=9)
    broken.of_step(0)
    with pytest.raises(OSError, match="no such disk"):
        broken.of_step(1)
    broken.close()


class Drawn(Rows):
    """Samples with random numbers of three kinds, and by which process they were made."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 11:
            raise OSError("no such disk")
        draws = torch.rand(1).item() + np.random.rand() + random.random()  # noqa: NPY002
        return {**super().__getitem__(index), "weight": draws, "labels": os.getpid()}


def _read_by_workers(data: Rows, needs: Needs) -> ReadByWorkers:
    return ReadByWorkers(_batches(data), needs, stop=3, num_workers=2)


def test_workers_read_ahead_in_order_and_an_error_comes_with_its_step() -> None:
    before = torch.random.get_rng_state()
    reading = _read_by_workers(Drawn(13), Needs.all_of([0, 1, 2]))
    assert reading.of_step(0).num_samples == 6
    with pytest.raises(HeterpsError, match="OSError: no such disk"):
        reading.of_step(1)
    # The one behind it can be read.
    last = reading.of_step(2)
    assert (last.num_samples, len(last.batches)) == (1, 3)
    makers = {int(target) for _, targets in last.batches.values() for target in targets}
    assert os.getpid() not in makers
    reading.close()
    assert all(not Path(f"/proc/{maker}").exists() for maker in makers)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_sample_draws_the_same_whoever_reads_it_and_whenever() -> None:
    whole = _read_by_workers(Drawn(9), Needs.all_of([0, 1, 2]))
    part = _read_by_workers(Drawn(9), Needs.all_of([2]))
    later = _read_by_workers(Drawn(9), Needs.all_of([2]))
    first, second = whole.of_step(0).batches, whole.of_step(1).batches
    weights = first[2][0]["weight"]
    assert torch.equal(part.of_step(0).batches[2][0]["weight"], weights)
    assert weights[0] != weights[1]
    assert torch.equal(later.of_step(1).batches[2][0]["weight"], second[2][0]["weight"])
    for reading in (whole, part, later):
        reading.close()


class Sharded(IterableDataset[dict[str, Any]]):
    """Gives each worker of a loader a part, as data sets of Hugging Face do."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info, data = get_worker_info(), Rows(13)
        first, stride = (0, 1) if info is None else (info.id, info.num_workers)
        return (data[index] for index in range(first, len(data), stride))


def test_every_step_has_its_samples_where_workers_go_through_data_in_a_row() -> None:
    reading = ReadByWorkers(_batches(Sharded()), Needs.all_of([0, 1, 2]), 3, num_workers=2)
    for step in range(3):
        found, expected = reading.of_step(step), _batches(Rows(13), shuffle=False)
        for index, (_, target) in expected.read(step, Needs.all_of([0, 1, 2])).batches.items():
            assert torch.equal(found.batches[index][1], target)
    reading.close()


def test_a_worker_that_ends_is_one_clear_error() -> None:
    class Ending(Rows):
        def __getitem__(self, index: int) -> dict[str, Any]:
            os._exit(3)

    reading = _read_by_workers(Ending(), Needs.all_of([0]))
    with pytest.raises(HeterpsError, match="a process that reads samples has ended"):
        reading.of_step(0)


class Changed(Rows):
    """Samples with something wrong."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.changes = changes

    def __getitem__(self, index: int) -> Any:
        sample = {**super().__getitem__(index), **self.changes}
        return {key: value for key, value in sample.items() if value is not MISSING}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (Changed(tokens=MISSING), "missing: tokens"),
        (Changed(labels=MISSING), "a sample has no 'labels', but tokens, weight"),
        (Changed(tokens=[1, 2]), r"tokens of a sample has the shape \(2,\); the plan's model"),
        (Changed(tokens=[0.5] * 3), "tokens is torch.float32; .* traced with int64"),
        (Changed(weight="heavy"), "a sample holds str, of which no tensor can be made"),
        (Changed(labels=0.5), "target target is torch.float32"),
    ],
)
def test_a_sample_that_does_not_fit_the_model_is_one_clear_error(data: Rows, text: str) -> None:
    with pytest.raises(HeterpsError, match=text):
        _batches(data).read(0, Needs.all_of([0]))


def test_a_collate_of_ones_own_gets_the_samples() -> None:
    def collate(samples: list[Any]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        tokens = torch.tensor([sample["tokens"].tolist() for sample in samples])
        return (tokens, tokens[:, 0] / 2), tokens[:, 0]

    read = _batches(Rows(), collate=collate).read(0, Needs.all_of([1])).batches[1]
    assert read[1].tolist() == [2, 3]
    program = replace(TrainingProgram(), evaluation_data=Rows())
    assert program.evaluate_every == 0
    with pytest.raises(HeterpsError, match="evaluate_every: needs evaluation_data"):
        TrainingProgram(evaluate_every=1)
