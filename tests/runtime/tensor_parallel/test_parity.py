"""A group computes what one device computes: its loss, and its gradients part by part."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_envs.layer_costs.tensor_parallel import split_profile
from heterps_runtime.models.build import Arguments
from heterps_runtime.models.data import make_batch
from heterps_runtime.models.flop_formulas import flops_of
from heterps_runtime.models.losses import loss_sum
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.stage import StageModule, StagePart
from heterps_runtime.tensor_parallel.by_batch import find_batch_calls
from tests.runtime.small_models import TOKENS
from tests.runtime.tensor_parallel.split_cases import Case, case_of
from tests.runtime.tensor_parallel.thread_sums import ThreadGroup

SAMPLES, SEED = 2, 3
KEY = (SEED, 5, 1)
GROUPS = [(0.5, 0.5), (0.5, 0.3, 0.2), (0.25, 0.25, 0.25, 0.25)]
MODELS = ["perceptron", "llama", "gpt2", "bert", "vit", "resnet", "qwen3", "gemma2", "mixtral"]
ONE_KEY = ["one key", "one normed key"]
LANGUAGE_MODELS = [*ONE_KEY, "llama", "gpt2", "bert", "qwen3", "gemma2", "mixtral"]


def _built(case: Case, first: int = 0, last: int | None = None, **part: Any) -> StageModule:
    last = case.profile.num_layers - 1 if last is None else last
    stage = build_stage(case.source, case.profile, StagePart(first, last, SAMPLES, SEED, **part))
    stage.module.double()
    for module in stage.module.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_experts_implementation"):
            # Products of all experts at once know no float64.
            config._experts_implementation = "eager"
    stage._arguments = _Doubled(case.source)
    return stage


class _Doubled(Arguments):
    """Inputs in the format of the parameters."""

    def of(self, inputs: dict[str, Tensor]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        args, kwargs = super().of(inputs)
        return tuple(map(_double, args)), {name: _double(value) for name, value in kwargs.items()}


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _trained(
    case: Case, stage: StageModule, samples: int = SAMPLES
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one micro-batch."""
    inputs, target = make_batch(case.source, 0, samples, seed=0)
    (output,) = stage(inputs, (), KEY)
    own = stage.split_loss
    loss = (
        loss_sum(case.source, output, target)
        if own is None
        else own.total(output, target) / own.elements(target)
    )
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad for n, p in stage.parameters_by_name().items() if p.grad is not None}
    return float(loss.detach()), gradients


@cache
def _alone(name: str) -> tuple[float, dict[str, Tensor], dict[str, Tensor]]:
    """Loss, gradients and statistics of a batch's normalisations."""
    case = case_of(name)
    stage = _built(case)
    return (*_trained(case, stage), stage.buffers_by_name())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shares"),
    [
        *((name, GROUPS[0]) for name in ("perceptron", "llama", "resnet", "mixtral")),
        *((name, GROUPS[1]) for name in (*MODELS, *ONE_KEY)),
        *((name, GROUPS[2]) for name in ("gpt2", "vit", "gemma2", "one key")),
    ],
)
def test_a_group_computes_what_one_device_computes(name: str, shares: tuple[float, ...]) -> None:
    case, group = case_of(name), ThreadGroup(len(shares))
    assert case.found.reasons == {}
    loss, gradients, statistics = _alone(name)
    # Mixtral's router and the norm of the one key compute in float32, whatever the format.
    most = 1e-7 if name in ("mixtral", "one normed key") else 1e-10

    keeps = len(shares) > 2  # in pairs, all get all logits

    def work(rank: int) -> tuple[StageModule, float, dict[str, Tensor]]:
        place = GroupSlice(rank, shares)
        sums = group.sums(rank)
        stage = _built(
            case, split=case.found.parameters, group=place, sums=sums, keeps_logits=keeps
        )
        assert (stage.split_loss is not None) == (keeps and name in LANGUAGE_MODELS)
        return (stage, *_trained(case, stage))

    for stage, own_loss, own in group.run(work):
        assert (
            stage.slices.keys() & stage.parameters_by_name().keys() == case.found.parameters.keys()
        )
        assert own_loss == pytest.approx(loss, rel=0, abs=1e-12)
        assert own.keys() == gradients.keys()
        for key, gradient in own.items():
            piece = stage.slices.get(key)
            expected = gradients[key] if piece is None else piece.of(gradients[key])
            torch.testing.assert_close(gradient, expected, rtol=0, atol=most, msg=key)
        for key, buffer in stage.buffers_by_name().items():
            found = statistics[key]
            piece = stage.slices.get(key)
            expected = found if piece is None else piece.of(found)
            torch.testing.assert_close(buffer, expected, rtol=0, atol=1e-12, msg=key)
    counted = [layer.tensor_split for layer in case.profile.layers if layer.tensor_split]
    num_sums = sum(len(split.forward_sums) + len(split.backward_sums) for split in counted)
    num_sums += sum(len(split.entering) for split in case.found.parameters.values())
    if name in ONE_KEY:  # the key and the value that all queries share
        outputs = [path for split in case.found.parameters.values() for path in split.outputs]
        assert len(outputs) == 2 * 2
    if keeps or name not in LANGUAGE_MODELS:
        assert group.num_sums == num_sums


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("shared normed keys", (0.5, 0.5)),
        ("shared keys", (0.4, 0.3, 0.3)),
        ("shared keys", (0.25,) * 4),
        ("shared normed keys", (0.4, 0.1, 0.2, 0.1, 0.2)),
        ("shared keys", (0.125,) * 8),
    ],
)
def test_ranks_that_share_a_key_and_value_have_terms_of_its_gradient(
    name: str, shares: tuple[float, ...]
) -> None:
    """Eight queries of two keys and values; some ranks have one query."""
    case, group = case_of(name), ThreadGroup(len(shares))
    assert case.found.reasons == case.found.not_shared == {}
    loss, gradients, _ = _alone(name)
    # The norm of keys computes in float32, whatever the format.
    most = 1e-6 if name == "shared normed keys" else 1e-10

    def work(rank: int) -> tuple[StageModule, float, dict[str, Tensor]]:
        place = GroupSlice(rank, shares)
        split, sums = case.found.parameters, group.sums(rank)
        stage = _built(case, split=split, group=place, sums=sums, keeps_logits=True)
        return (stage, *_trained(case, stage))

    found = group.run(work)
    for stage, own_loss, own in found:
        assert own_loss == pytest.approx(loss, rel=0, abs=1e-12)
        assert own.keys() == gradients.keys()
        held = [other for other, _, _ in found]
        assert (
            stage.slices.keys() & stage.parameters_by_name().keys() == case.found.parameters.keys()
        )
        for key in own:
            piece = stage.slices.get(key)
            expected = gradients[key] if piece is None else piece.of(gradients[key])
            terms = [
                terms[key]
                for other, (_, _, terms) in zip(held, found, strict=True)
                if other is stage or (piece is not None and other.slices[key] == piece)
            ]
            assert len(terms) == 1 or case.found.parameters[key].is_key_value
            total = torch.stack(terms).sum(0)
            torch.testing.assert_close(total, expected, rtol=0, atol=most, msg=key)
    keys = [stage.slices["model.layers.0.self_attn.k_proj.weight"] for stage, _, _ in found]
    assert len(set(keys)) == 2
    # No more sums than without sharing, in the passes.
    counted = [layer.tensor_split for layer in case.profile.layers if layer.tensor_split]
    num_sums = sum(len(split.forward_sums) + len(split.backward_sums) for split in counted)
    num_sums += sum(len(split.entering) for split in case.found.parameters.values())
    assert group.num_sums == num_sums


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the products of what one thread does."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if "_scaled_dot_product" in name:  # two products, and of the backward pass five
            query, key = args[1:3] if name.endswith("_backward") else args[:2]
            products = 5 if name.endswith("_backward") else 2
            self.flops += products * 2 * query.numel() * key.shape[-2]
        else:
            self.flops += flops_of(func, args, kwargs or {}, result) or 0.0
        return result


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.4, 0.3, 0.3), (0.25,) * 4, (0.125,) * 8])
def test_ranks_hold_and_compute_what_is_counted_where_they_share_keys_and_values(
    shares: tuple[float, ...],
) -> None:
    """Parameters of every layer, and the products of all passes."""
    case, group = case_of("shared keys, no dropout"), ThreadGroup(len(shares))

    def work(rank: int) -> tuple[StageModule, float]:
        place, sums = GroupSlice(rank, shares), group.sums(rank)
        split = case.found.parameters
        stage = _built(case, split=split, group=place, sums=sums, keeps_logits=True)
        with _Counter() as counter:
            _trained(case, stage)
        return stage, counter.flops

    for rank, (stage, flops) in enumerate(group.run(work)):
        layers = split_profile(case.profile, len(shares), GroupSlice(rank, shares)).layers
        for index, layer in enumerate(layers):
            users = stage.parameter_layers
            own = [p for n, p in stage.parameters_by_name().items() if index in users[n]]
            assert sum(parameter.numel() for parameter in own) == layer.num_parameters
        counted = sum(layer.forward_flops + layer.backward_flops for layer in layers)
        assert SAMPLES * counted == pytest.approx(flops, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "mixtral", "resnet"])
def test_a_group_may_keep_layers_whole(name: str) -> None:
    """Every other one; gpt2's and bert's first and last layer have a table in common."""
    case, group, shares = case_of(name), ThreadGroup(2), (0.7, 0.3)
    whole = tuple(range(1, case.profile.num_layers - 1, 2))
    loss, gradients, _ = _alone(name)
    most = 1e-7 if name == "mixtral" else 1e-10

    def work(rank: int) -> tuple[StageModule, float, dict[str, Tensor]]:
        sums, place = group.sums(rank), GroupSlice(rank, shares)
        split = case.found.parameters
        stage = _built(case, split=split, group=place, sums=sums, whole_layers=whole)
        return (stage, *_trained(case, stage))

    for stage, own_loss, own in group.run(work):
        kept = {key for key in own if set(stage.parameter_layers[key]) & set(whole)}
        assert kept.isdisjoint(stage.slices)
        assert kept & case.found.parameters.keys()
        assert stage.slices
        assert own_loss == pytest.approx(loss, rel=0, abs=1e-12)
        assert own.keys() == gradients.keys()
        for key, gradient in own.items():
            piece = stage.slices.get(key)
            expected = gradients[key] if piece is None else piece.of(gradients[key])
            torch.testing.assert_close(gradient, expected, rtol=0, atol=most, msg=key)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_stages_of_a_group_may_recompute_and_be_able_to_put_off_weight_gradients(name: str) -> None:
    case, group, shares = case_of(name), ThreadGroup(2), (0.7, 0.3)
    loss, gradients, _ = _alone(name)
    last = case.profile.num_layers - 1

    def work(rank: int) -> tuple[list[StageModule], float, dict[str, Tensor]]:
        options: dict[str, Any] = {
            "split": case.found.parameters,
            "group": GroupSlice(rank, shares),
            "sums": group.sums(rank),
            "keeps_logits": True,
            "defers_weight_gradients": True,
        }
        front = _built(case, 0, 1, recompute_layers=[1], **options)
        back = _built(case, 2, last, recompute_layers=[2], **options)
        inputs, target = make_batch(case.source, 0, SAMPLES, seed=0)
        sent = front(inputs, (), KEY)
        received = tuple(tensor.detach().requires_grad_() for tensor in sent)
        (output,) = back(inputs, received, KEY)
        assert back.split_loss is not None
        own_loss = back.split_loss.total(output, target) / TOKENS
        own_loss.backward()  # type: ignore[no-untyped-call]
        torch.autograd.backward(sent, [tensor.grad for tensor in received])
        found: dict[str, Tensor] = {}
        for stage in (front, back):
            for key, parameter in stage.parameters_by_name().items():
                if parameter.grad is not None:
                    found[key] = found.get(key, torch.zeros(())) + parameter.grad
        return [front, back], float(own_loss.detach()), found

    for stages, own_loss, own in group.run(work):
        assert own_loss == pytest.approx(loss, rel=0, abs=1e-12)
        slices = stages[0].slices | stages[1].slices
        assert own.keys() == gradients.keys()
        for key, gradient in own.items():
            expected = slices[key].of(gradients[key]) if key in slices else gradients[key]
            torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10, msg=key)


BATCH_MODELS = [name for name in MODELS if name != "resnet"] + ["t5", "one normed key"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        *((name, "all") for name in BATCH_MODELS),
        *((name, "every other one") for name in ("perceptron", "gpt2", "mixtral", "t5")),
    ],
)
def test_a_group_may_split_the_samples_of_layers(name: str, chosen: str) -> None:
    """Three of five samples on one rank; t5's encoder output and bias are read by many layers."""
    case, group, shares = case_of(name), ThreadGroup(2), (0.6, 0.4)
    count = case.profile.num_layers
    calls = find_batch_calls(case.source)
    refused = {i for i, layer in enumerate(case.profile.layers) if layer.name in calls.reasons}
    assert refused <= {0, count - 1}
    every = [index for index in range(count) if index not in refused]
    batch = every if chosen == "all" else every[1::2]
    loss, gradients = _trained(case, _built(case), 5)
    # Layers that are not split by batch are whole: gpt2's ends have a table in common.
    whole = [index for index in range(count) if index not in batch]

    def work(rank: int) -> tuple[StageModule, float, dict[str, Tensor]]:
        sums, place = group.sums(rank), GroupSlice(rank, shares)
        stage = _built(
            case, group=place, sums=sums, split=case.found.parameters, whole_layers=whole,
            batch_layers=tuple(batch), batch_calls=calls.of_model(),
        )  # fmt: skip
        return (stage, *_trained(case, stage, 5))

    # Their norms compute in float32, whatever the format.
    most = 1e-7 if name in ("mixtral", "gemma2", "one normed key") else 1e-10
    for stage, own_loss, own in group.run(work):
        assert not stage.slices
        assert own_loss == pytest.approx(loss, rel=0, abs=1e-12)
        assert own.keys() == gradients.keys()
        for key, gradient in own.items():
            torch.testing.assert_close(gradient, gradients[key], rtol=0, atol=most, msg=key)
