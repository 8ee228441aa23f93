"""Which layers can be split by batch, and that a layer that looks at others' samples is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from heterps_configs.errors import HeterpsError
from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_runtime.models.build import register_factory
from heterps_runtime.models.data import make_batch
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.stage import StagePart
from heterps_runtime.tensor_parallel.batch_call import gathered
from heterps_runtime.tensor_parallel.by_batch import find_batch_calls
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.tensor_parallel.split_cases import case_of
from tests.runtime.tensor_parallel.thread_sums import ThreadGroup


class Centred(nn.Module):
    """Subtracts the mean of all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear(x)
        return made - made.mean(0)


class Flat(nn.Module):
    """Puts features first."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear(x)
        return made.t()


class Back(nn.Module):
    """Puts samples first again."""

    def forward(self, x: Tensor) -> Tensor:
        return x.t().contiguous()


def centred() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), Centred(), nn.Linear(8, 8))


def turned() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), Flat(), Back(), nn.Linear(8, 8))


def recurrent() -> nn.Module:
    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.GRU(8, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.cells(x.unsqueeze(1))[0]
            return made.squeeze(1)

    return nn.Sequential(nn.Linear(8, 8), Read(), nn.Linear(8, 8))


def test_samples_of_blocks_behind_one_another_stay_apart() -> None:
    calls = find_batch_calls(case_of("perceptron").source).of_model()
    assert [call.taken for call in calls] == [(1,)] * 4
    assert [call.made for call in calls] == [(1,)] * 4
    assert [call.draws for call in calls] == [(), (1,), (1,), ()]
    own = [call.number for call in calls[:-1]]
    assert [gathered(calls, own)[number] for number in own] == [(), (), (0,)]


@pytest.mark.parametrize(
    ("factory", "reasons"),
    [
        (turned, {"1": "not the first dimension", "2": "not the first dimension"}),
        (recurrent, {"1": "recurrent layers hold their parameters in a list"}),
    ],
)
def test_layers_are_refused_with_the_reason(
    factory: Callable[[], nn.Module], reasons: dict[str, str]
) -> None:
    found = find_batch_calls(factory_source(register_factory(factory), ["x=8:float32"]))
    assert found.reasons.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in found.reasons[name]


def test_statistics_of_a_batch_are_of_all_its_samples() -> None:
    reasons = find_batch_calls(case_of("resnet").source).reasons
    assert "it normalises over the samples of a batch" in str(reasons)


def test_a_layer_that_looks_at_other_samples_ends_the_first_pass() -> None:
    """Its shapes do not tell."""
    source = factory_source(register_factory(centred), ["x=8:float32"])
    profile, calls, group = trace_source(source, "m"), find_batch_calls(source), ThreadGroup(2)
    assert not calls.reasons

    def work(rank: int) -> None:
        part = StagePart(
            0, 2, 4, group=GroupSlice(rank, (0.5, 0.5)), sums=group.sums(rank),
            batch_layers=(0, 1, 2), batch_calls=calls.of_model(),
        )  # fmt: skip
        inputs, _ = make_batch(source, 0, 4, seed=0)
        build_stage(source, profile, part)(inputs)

    with pytest.raises(HeterpsError, match="1: what it returns for a sample depends on the other"):
        group.run(work)


def test_the_second_pass_puts_nothing_together_between_layers() -> None:
    case, group = case_of("perceptron"), ThreadGroup(2)
    calls = find_batch_calls(case.source).of_model()

    def work(rank: int) -> list[int]:
        part = StagePart(
            0, 3, 4, group=GroupSlice(rank, (0.5, 0.5)), sums=group.sums(rank),
            batch_layers=(0, 1, 2, 3), batch_calls=calls,
        )  # fmt: skip
        stage, counts = build_stage(case.source, case.profile, part), []
        inputs, _ = make_batch(case.source, 0, 4, seed=0)
        for step in range(2):
            before = group.num_sums
            with torch.no_grad():
                stage(inputs, (), (0, step, 0))
            counts.append(group.num_sums - before)
        return counts

    assert group.run(work)[0] == [4, 1]
