"""One rank records the model, and the others build the same stages from what it sends."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from heterps_configs.documents.job import Job
from heterps_configs.documents.model.source import ModelSource
from heterps_runtime.models import recordings
from heterps_runtime.models.build import build_module
from heterps_runtime.models.recordings import record, recorded, share_recordings
from heterps_runtime.models.trust import trust_source
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.stage import StagePart
from tests.runtime.small_models import HERE as MODELS
from tests.runtime.small_models import NAMES, WIDTH, profile_of, source_of

HERE = "tests.runtime.models.test_recordings"
JOB = Job(global_batch_size=5, micro_batch_size=2, dtype="float32")  # sizes 2 and 1


class _Wire:
    """What rank 0 sends reaches the rank that asks next."""

    world_size = 2

    def __init__(self) -> None:
        self.rank, self.sent = 0, b""

    def broadcast_bytes(self, data: bytes) -> bytes:
        if self.rank == 0:
            self.sent = data
        return self.sent


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "_RECORDINGS", {})


def _share(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> _Wire:
    """Rank 0 sends, and this process becomes rank 1."""
    wire = _Wire()
    share_recordings(source, JOB, wire)
    monkeypatch.setattr(recordings, "_RECORDINGS", {})
    wire.rank = 1
    share_recordings(source, JOB, wire)
    return wire


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_arrives_is_what_the_rank_would_have_recorded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _share(source, monkeypatch)
    assert len(recordings._RECORDINGS) == 2
    own = record(source, build_module(source), JOB.micro_batch_size)
    found = recorded(source, build_module(source), JOB.micro_batch_size, "float32")
    own.sequence_ends, found.sequence_ends = [], []  # numbers of this process
    assert found == own


def test_no_other_rank_records(monkeypatch: pytest.MonkeyPatch) -> None:
    source, profile = source_of("gpt2"), profile_of("gpt2")
    _share(source, monkeypatch)

    def fails(*arguments: object) -> None:
        raise AssertionError("a second recording")

    monkeypatch.setattr(recordings, "record", fails)
    stage = build_stage(source, profile, StagePart(1, 3, JOB.micro_batch_size, 0))
    assert stage.specs(1)[0][0].shape[0] == 1
    received, sent_specs = stage.specs(JOB.micro_batch_size)
    inputs = {"input_ids": torch.zeros(2, 12, dtype=torch.int64)}
    (sent,) = stage(inputs, tuple(torch.zeros(s.shape) for s in received))
    assert sent.shape == sent_specs[0].shape


class _Odd:
    """Something that cannot be sent."""


class _ReturnsOdd(nn.Module):
    """Returns a tensor, and something else."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, _Odd]:
        return self.inner(x), _Odd()


class _Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_ReturnsOdd(), nn.Linear(WIDTH, 3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle, _ = self.layers[0](x)
        result: torch.Tensor = self.layers[1](middle)
        return result


def holds_odd() -> nn.Module:
    """A model whose recording holds something that cannot be sent."""
    return _Outer()


@pytest.mark.parametrize("factory", [f"{HERE}:holds_odd", f"{MODELS}:fails_in_forward"])
def test_what_cannot_be_sent_is_left_to_each_rank(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = factory_source(f"{HERE}:holds_odd", [f"x={WIDTH}:float32"])
    source = works.changed(factory=factory)
    trust_source(source)
    recordings._RECORDINGS.clear()
    wire = _share(source, monkeypatch)
    assert wire.sent == b""
    assert not recordings._RECORDINGS


def test_bytes_of_an_unknown_type_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = _Wire()
    wire.rank, wire.sent = 1, b"cnowhere\nnothing\n."
    share_recordings(source_of("gpt2"), JOB, wire)
    assert not recordings._RECORDINGS


def test_a_process_alone_sends_nothing() -> None:
    wire = _Wire()
    wire.world_size = 1
    share_recordings(source_of("gpt2"), JOB, wire)
    assert not recordings._RECORDINGS
