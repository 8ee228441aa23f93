"""A chain of stages computes what the whole model computes, to the last bit or nearly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from heterps_configs.errors import PlanMismatchError
from heterps_runtime.models.build import arguments, build_module, register_factory
from heterps_runtime.models.data import make_batch
from heterps_runtime.models.losses import loss_sum
from heterps_runtime.models.recording import select_output
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.stages import stage_pass
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.stage import StageModule, StagePart
from heterps_runtime.tracing.trace import trace_source
from tests.runtime import small_runs
from tests.runtime.small_models import NAMES, initialise, profile_of, source_of

Gradients = dict[str, Tensor]


def _whole_model(name: str, batch_size: int) -> tuple[Tensor, Gradients, nn.Module]:
    source = source_of(name)
    module = initialise(build_module(source), seed=0)
    inputs, target = make_batch(source, 0, batch_size, seed=0)
    args, kwargs = arguments(source, inputs)
    output = select_output(module(*args, **kwargs))
    (loss_sum(source, output, target) / batch_size).backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return output.detach(), gradients, module


def _stages(name: str, num_stages: int, micro_batch_size: int) -> list[StageModule]:
    """Unequal stages: each later one is longer, the last takes the rest."""
    layers = profile_of(name).num_layers
    cuts = [0, *sorted({1 + i * (layers - 1) // num_stages for i in range(num_stages - 1)}), layers]
    return [
        build_stage(
            source_of(name), profile_of(name), StagePart(first, end - 1, micro_batch_size, seed=0)
        )
        for first, end in pairwise(cuts)
    ]


def _run_chain(stages: list[StageModule], name: str, batch_size: int) -> tuple[Tensor, Gradients]:
    source = source_of(name)
    inputs, target = make_batch(source, 0, batch_size, seed=0)
    received: list[tuple[Tensor, ...]] = []
    sent: list[tuple[Tensor, ...]] = [()]
    for stage in stages:
        arrived = tuple(t.detach().requires_grad_(t.requires_grad) for t in sent[-1])
        specs = [(tuple(t.shape), t.dtype, t.requires_grad) for t in arrived]
        assert specs == [tuple(spec) for spec in stage.specs(batch_size)[0]]
        received.append(arrived)
        sent.append(stage(inputs, arrived))
        assert all(t.is_contiguous() and not t._is_view() for t in sent[-1])
    (loss_sum(source, sent[-1][0], target) / batch_size).backward()  # type: ignore[no-untyped-call]
    for outputs, leaves in reversed(list(zip(sent[1:-1], received[1:], strict=True))):
        pairs = [
            (o, leaf.grad) for o, leaf in zip(outputs, leaves, strict=True) if leaf.grad is not None
        ]
        assert all(gradient.is_contiguous() for _, gradient in pairs)
        torch.autograd.backward([o for o, _ in pairs], [gradient for _, gradient in pairs])
    gradients: Gradients = {}
    for stage in stages:
        for key, parameter in stage.parameters_by_name().items():
            if parameter.grad is not None:
                gradients[key] = gradients.get(key, torch.zeros(())) + parameter.grad
    return sent[-1][0].detach(), gradients


def _assert_equal(one: Gradients, other: Gradients) -> None:
    assert one.keys() == other.keys()
    largest = max(float(gradient.abs().max()) for gradient in other.values())
    for name, gradient in one.items():
        difference = float((gradient - other[name]).abs().max())
        assert difference <= 1e-6 * max(1.0, largest), f"{name}: {difference}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_stages"), [(name, count) for name in NAMES for count in (2, 4)] + [("llama", 3)]
)
def test_a_chain_of_unequal_stages_equals_the_whole_model(name: str, num_stages: int) -> None:
    output, gradients, _ = _whole_model(name, 4)
    chained, collected = _run_chain(_stages(name, num_stages, 4), name, 4)
    torch.testing.assert_close(chained, output, rtol=0, atol=1e-6)
    _assert_equal(collected, gradients)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "ctr", "sequential", "long_skip"])
def test_every_single_layer_can_be_a_stage(name: str) -> None:
    output, gradients, _ = _whole_model(name, 2)
    stages = [
        build_stage(source_of(name), profile_of(name), StagePart(index, index, 2, seed=0))
        for index in range(profile_of(name).num_layers)
    ]
    chained, collected = _run_chain(stages, name, 2)
    torch.testing.assert_close(chained, output, rtol=0, atol=1e-6)
    _assert_equal(collected, gradients)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_one_stage_of_all_layers_is_exactly_the_model(name: str) -> None:
    output, gradients, _ = _whole_model(name, 3)
    last = profile_of(name).num_layers - 1
    stage = build_stage(source_of(name), profile_of(name), StagePart(0, last, 3, seed=0))
    chained, collected = _run_chain([stage], name, 3)
    assert torch.equal(chained, output)
    assert collected.keys() == gradients.keys()
    assert all(torch.equal(collected[key], gradients[key]) for key in gradients)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "resnet", "t5"])
def test_a_ragged_micro_batch_runs_through_the_same_stages(name: str) -> None:
    stages = _stages(name, 3, 4)
    _run_chain(stages, name, 4)
    for stage in stages:
        stage.zero_grad()
    output, gradients, _ = _whole_model(name, 3)
    chained, collected = _run_chain(stages, name, 3)
    torch.testing.assert_close(chained, output, rtol=0, atol=1e-6)
    if name != "resnet":
        _assert_equal(collected, gradients)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_stage_holds_its_own_parameters_and_no_others(name: str) -> None:
    _, _, whole = _whole_model(name, 2)
    expected = dict(whole.named_parameters())
    stages = _stages(name, 3, 2)
    used = {key for stage in stages for key in stage.parameters_by_name()}
    assert used <= expected.keys()
    for stage in stages:
        assert {id(p) for p in stage.parameters()} == {
            id(p) for p in stage.parameters_by_name().values()
        }
        for key, parameter in stage.parameters_by_name().items():
            assert torch.equal(parameter, expected[key]), key


def test_tied_parameters_start_equal_and_are_named() -> None:
    first, _, last = _stages("gpt2", 3, 2)
    name = "transformer.wte.weight"
    assert first.tied_names() == last.tied_names() == {name}
    assert torch.equal(first.parameters_by_name()[name], last.parameters_by_name()[name])


def test_running_statistics_belong_to_the_stage_of_their_layer() -> None:
    stages = _stages("resnet", 2, 2)
    names = [set(stage.buffers_by_name()) for stage in stages]
    assert names[0].isdisjoint(names[1])
    assert any("running_mean" in name for name in names[1])
    _run_chain(stages, "resnet", 2)
    counters = [b for n, b in stages[1].buffers_by_name().items() if n.endswith("batches_tracked")]
    assert all(counter == 1 for counter in counters)


@pytest.mark.parametrize(("name", "has_any"), [("resnet", True), ("vit", False)])
def test_every_stage_knows_whether_the_model_normalises_over_batches(
    name: str, has_any: bool
) -> None:
    """Also the last layers of a ResNet, which do not."""
    last = profile_of(name).num_layers - 1
    stage = build_stage(source_of(name), profile_of(name), StagePart(last, last, 2, seed=0))
    assert stage.has_batch_norm == has_any


def test_parameters_can_be_replaced_by_moved_ones() -> None:
    stage = _stages("llama", 2, 2)[1]
    moved = {n: nn.Parameter(torch.zeros_like(p)) for n, p in stage.parameters_by_name().items()}
    stage.use(moved)
    assert all(stage.parameters_by_name()[name] is moved[name] for name in moved)
    assert {id(p) for p in stage.parameters()} == {id(p) for p in moved.values()}


def test_a_profile_of_another_model_is_refused() -> None:
    with pytest.raises(PlanMismatchError, match="trace it again"):
        build_stage(source_of("llama"), profile_of("gpt2"), StagePart(0, 0, 2, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "vit", "resnet", "sequential"])
def test_a_chain_in_bfloat16_gives_what_one_stage_gives(name: str) -> None:
    source, profile = source_of(name), profile_of(name)
    inputs, _ = make_batch(source, 0, 2, seed=0)
    middle, last = profile.num_layers // 2, profile.num_layers - 1
    whole, front, back = (
        build_stage(source, profile, StagePart(*layers, 2, seed=0, dtype="bfloat16"))
        for layers in ((0, last), (0, middle), (middle + 1, last))
    )
    assert all(spec.dtype == torch.bfloat16 for spec in front.specs(front.micro_batch_size)[1])
    assert torch.equal(back(inputs, front(inputs))[0], whole(inputs)[0])


@pytest.mark.parametrize("model", ["sequential", "dropping"])
def test_a_chain_of_units_computes_what_the_model_around_them_does(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = small_runs.profile_of(model)
    source = profile.source
    assert source is not None
    inputs, _ = make_batch(source, 0, 3, seed=0)

    def outputs() -> list[Tensor]:
        received: tuple[Tensor, ...] = ()
        found: list[Tensor] = []
        for layers in ((0, 2), (3, 3), (4, profile.num_layers - 1)):
            stage = build_stage(source, profile, StagePart(*layers, 3, seed=0))
            received = stage(inputs, received, (0, 1, 2))
            found += received
        return found

    assert build_stage(source, profile, StagePart(0, 2, 3, seed=0))._pass.is_chain
    chained = outputs()
    monkeypatch.setattr(stage_pass, "is_chain", lambda *args: False)
    assert all(map(torch.equal, chained, outputs()))


def _with_a_hook() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module.register_forward_hook(lambda module, args, output: 2 * output)
    return module


class _Doubling(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return 2 * result


def _nested() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()))


@pytest.mark.parametrize(
    ("factory", "is_chain"),
    [
        (_nested, True),
        (_with_a_hook, False),
        (lambda: _Doubling(nn.Linear(4, 4), nn.Linear(4, 4)), False),
        (lambda: nn.Linear(4, 4), False),
    ],
)
def test_only_plain_sequences_are_run_as_chains(
    factory: Callable[[], nn.Module], is_chain: bool
) -> None:
    source = factory_source(register_factory(factory), ["x=4:float32"])
    profile = trace_source(source, "model")
    stage = build_stage(source, profile, StagePart(0, profile.num_layers - 1, 2, seed=0))
    assert stage._pass.is_chain == is_chain
    inputs, _ = make_batch(source, 0, 2, seed=0)
    module = initialise(build_module(source), seed=0)
    assert torch.equal(stage(inputs)[0], module(inputs["x"]))
