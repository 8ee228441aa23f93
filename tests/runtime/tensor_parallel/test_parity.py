"""A group computes what one device computes: its loss, and its gradients part by part."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from heterps_configs.documents.model_profile import ModelProfile, ModelSource
from heterps_runtime.models.build import Arguments, register_factory
from heterps_runtime.models.data import make_batch
from heterps_runtime.models.huggingface import huggingface_source
from heterps_runtime.models.losses import loss_sum
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.stages.stage import StageModule, StagePart, build_stage
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit
from heterps_runtime.tensor_parallel.plan import find_splits
from heterps_runtime.tensor_parallel.slices import GroupSlice
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.small_models import CONFIGS, IMAGE_MODELS, TOKENS
from tests.runtime.tensor_parallel.thread_sums import ThreadGroup

SAMPLES, SEED = 2, 3
KEY = (SEED, 5, 1)
GROUPS = [(0.5, 0.5), (0.5, 0.3, 0.2), (0.25, 0.25, 0.25, 0.25)]
_LLAMA_LIKE = {**CONFIGS["llama"], "num_key_value_heads": 4, "num_hidden_layers": 2}
_BERT_DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}
_GPT2_DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.2}
MODELS = ["perceptron", "llama", "gpt2", "bert", "vit", "resnet", "qwen3", "gemma2", "mixtral"]
LANGUAGE_MODELS = ["llama", "gpt2", "bert", "qwen3", "gemma2", "mixtral"]


def _hidden_layers() -> nn.Module:
    """Blocks of two linear layers, so that there is something to split between them."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 20), nn.Linear(20, 8)
            self.dropout = nn.Dropout(0.3)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.second(self.dropout(self.first(x).relu()))
            return output + x

    return nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 5))


class Case(NamedTuple):
    """A model, its profile, and what of it is split."""

    source: ModelSource
    profile: ModelProfile
    plan: dict[str, ParameterSplit]


@cache
def case_of(name: str) -> Case:
    """A small model and how it is split."""
    source = _source(name)
    found = find_splits(source)
    assert found.reasons == {}
    return Case(source, trace_source(source, name), found.parameters)


def _source(name: str) -> ModelSource:
    if name == "perceptron":
        return factory_source(register_factory(_hidden_layers), ["x=8:float32"])
    changes: dict[str, dict[str, Any]] = {
        "llama": {"num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 2},
        "gpt2": {"n_layer": 2, **_GPT2_DROPOUT},
        "bert": {"num_hidden_layers": 2, **_BERT_DROPOUT},
        "vit": {"num_hidden_layers": 2, **_BERT_DROPOUT},
        "resnet": {"hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "bottleneck"},
        "qwen3": _LLAMA_LIKE | {"model_type": "qwen3", "head_dim": 8},
        "gemma2": _LLAMA_LIKE | {"model_type": "gemma2", "head_dim": 8},
        "mixtral": _LLAMA_LIKE
        | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    }
    config = {**CONFIGS.get(name, {}), **changes[name]}
    if name in IMAGE_MODELS:
        return huggingface_source(config, image_size=32 if name == "resnet" else None)
    return huggingface_source(config, sequence_length=TOKENS)


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


def _trained(case: Case, stage: StageModule) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one micro-batch."""
    inputs, target = make_batch(case.source, 0, SAMPLES, seed=0)
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


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        *((name, shares) for name in MODELS for shares in GROUPS),
        *((name, GROUPS[1]) for name in ("qwen3", "gemma2")),
    ],
)
def test_a_group_computes_what_one_device_computes(name: str, shares: tuple[float, ...]) -> None:
    case, group = case_of(name), ThreadGroup(len(shares))
    loss, gradients, statistics = _alone(name)
    # Mixtral's router computes in float32, whatever the format.
    most = 1e-7 if name == "mixtral" else 1e-10

    keeps = len(shares) > 2  # in pairs, all get all logits

    def work(rank: int) -> tuple[StageModule, float, dict[str, Tensor]]:
        place = GroupSlice(rank, shares)
        sums = group.sums(rank)
        stage = _built(case, split=case.plan, group=place, sums=sums, keeps_logits=keeps)
        assert (stage.split_loss is not None) == (keeps and name in LANGUAGE_MODELS)
        return (stage, *_trained(case, stage))

    for stage, own_loss, own in group.run(work):
        assert stage.slices.keys() & stage.parameter_names() == case.plan.keys()
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
    num_sums += sum(len(split.entering) for split in case.plan.values())
    if keeps or name not in LANGUAGE_MODELS:
        assert group.num_sums == num_sums


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_stages_of_a_group_may_recompute_and_be_able_to_put_off_weight_gradients(name: str) -> None:
    case, group, shares = case_of(name), ThreadGroup(2), (0.7, 0.3)
    loss, gradients, _ = _alone(name)
    last = case.profile.num_layers - 1

    def work(rank: int) -> tuple[list[StageModule], float, dict[str, Tensor]]:
        options: dict[str, Any] = {
            "split": case.plan,
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
