"""Matrix products and kernels of traced layers, against shapes derived by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.matrix_products import launches_kernel
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.small_models import NAMES, profile_of

HERE = "tests.runtime.tracing.test_matrix_products"


def grouped() -> nn.Sequential:
    """Convolutions in one group, in several, along channels, and transposed."""
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4),
        nn.Conv2d(16, 16, 3, groups=16, padding=1),
        nn.ConvTranspose2d(16, 4, 2, stride=2, groups=2),
        nn.Flatten(),
    )


def normalised() -> nn.Sequential:
    """Traced with two samples, as it has a batch norm."""
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))


def transformer(dropout: float = 0.0) -> nn.Sequential:
    """A layer of torch's own, over 3 tokens of a sample."""
    block = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (3, 8)), block, nn.Flatten())


def dropped() -> nn.Sequential:
    """The same where numbers of the attention are dropped, which no fused kernel of a CPU does."""
    return transformer(0.1)


class Recurrent(nn.Module):
    """An LSTM of 8 steps and what reads its last one."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(1, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.cells(x.unsqueeze(-1))
        return torch.as_tensor(self.head(hidden[:, -1]))


class Weights(nn.Module):
    """Products with parameters that come first, lie in a batch, or are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.empty(6, 4))
        self.experts = nn.Parameter(torch.empty(3, 8, 5))
        self.low, self.high = nn.Parameter(torch.empty(5, 2)), nn.Parameter(torch.empty(2, 7))

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.matmul(self.mixing, x.view(-1, 4, 8))
        by_expert = torch.einsum("btd,edf->bef", mixed, self.experts)
        adapted = by_expert @ (self.low @ self.high)
        return torch.bmm(adapted, adapted.transpose(1, 2)).flatten(1)


def recurrent() -> nn.Module:
    return Recurrent()


def weights() -> nn.Module:
    return nn.Sequential(Weights())


def texts(layer: LayerProfile) -> list[str]:
    return [product.short_text for product in layer.matrix_products]


def texts_of(profile: ModelProfile) -> list[str]:
    return [text for layer in profile.layers for text in texts(layer)]


def traced(name: str, given: str) -> ModelProfile:
    return trace_source(factory_source(f"{HERE}:{name}", [f"x={given}:float32"]), name)


def traced_config(**config: Any) -> ModelProfile:
    return trace_source(huggingface_source(config, 16), "model")


TWELVE = ["fused activations 4 x 12x8x12", "fused activations 4 x 12x12x8"]


def test_a_llama_block_has_its_linear_layers_and_the_attention_of_each_head() -> None:
    # 4 heads of 8 over 2 of keys and values; a gated part of 64 columns.
    assert texts(profile_of("llama").layers[1]) == [
        *("2 x 12x32x32", "2 x 12x32x16", *TWELVE, "2 x 12x32x64", "12x64x32")
    ]
    assert texts(profile_of("llama").layers[0]) == []
    assert texts(profile_of("llama").layers[-1]) == ["12x32x64"]


def test_a_gpt2_block_computes_queries_keys_and_values_as_one_product() -> None:
    assert texts(profile_of("gpt2").layers[1]) == [
        *("12x32x96", *TWELVE, "12x32x32", "12x32x128", "12x128x32")
    ]


def test_a_bert_block_has_four_equal_products_around_its_attention() -> None:
    assert texts(profile_of("bert").layers[1]) == ["4 x 12x32x32", *TWELVE, "12x32x64", "12x64x32"]


def test_a_vit_begins_with_a_convolution_of_patches_and_has_one_token_more() -> None:
    first, block, *_, last = profile_of("vit").layers
    assert texts(first) == ["4x192x32"]
    assert texts(block) == [
        "4 x 5x32x32", "fused activations 4 x 5x8x5", "fused activations 4 x 5x5x8",
        "5x32x64", "5x64x32",
    ]  # fmt: skip
    assert texts(last) == ["1x32x2"]


def test_attention_with_a_trained_bias_is_not_fused() -> None:
    layer = next(e for e in profile_of("t5").layers if e.kind == "T5LayerSelfAttention")
    assert texts(layer) == ["4 x 12x32x32", "activations 4 x 12x8x12", "activations 4 x 12x12x8"]


@pytest.mark.parametrize(("name", "kernel"), [("transformer", "fused "), ("dropped", "")])
def test_attention_of_torch_is_fused_where_it_is_one_kernel(name: str, kernel: str) -> None:
    layer = traced(name, "24").layers[1]
    heads = [f"{kernel}activations 2 x 3x4x3", f"{kernel}activations 2 x 3x3x4"]
    assert texts(layer) == ["3x8x24", *heads, "3x8x8", "3x8x16", "3x16x8"]
    flops = [each.flops for each in layer.matrix_products]
    assert sum(flops) == layer.forward_flops
    # A fused kernel computes the scores again; the model's input has no gradient.
    of_attention = 2.5 if kernel else 2
    backward = flops[0] + of_attention * sum(flops[1:3]) + 2 * sum(flops[3:])
    assert layer.backward_flops == backward


def test_a_convolution_is_the_product_of_its_positions_and_each_group() -> None:
    assert texts_of(traced("grouped", "4,6,6")) == [
        "36x36x8",  # 6 x 6 positions; 4 channels x 9; 8 channels
        "4 x 9x18x4",  # 3 x 3 positions; 2 of 8 channels x 9; 4 of 16
        "16 x 9x9x1",
        "2 x 9x8x8",  # positions of the input; 8 of 16 channels; 2 of 4 x 4
    ]


def test_two_traced_samples_count_as_one() -> None:
    assert texts_of(traced("normalised", "8")) == ["1x8x8", "1x8x2"]
    layer = profile_of("resnet").layers[1]
    assert texts(layer) == ["64x8x2", "64x18x2", "64x2x8"]


def test_an_lstm_has_the_inputs_of_all_steps_and_then_step_by_step() -> None:
    assert texts(traced("recurrent", "8").layers[0])[:2] == ["8x1x64", "8 x 1x16x64"]


def test_weights_are_told_from_activations_wherever_they_stand() -> None:
    assert texts_of(traced("weights", "32")) == [
        "8x4x6",  # the weight came first
        "1x8x15",
        "5x2x7",
        "3x5x7",
        "activations 3x7x3",
    ]


@pytest.mark.parametrize(
    ("num_experts", "expected"),
    [(4, ["4 x 8x64x256", "4 x 8x128x64"]), (5, ["2 x 7x64x256", "3 x 6x64x256"])],
)
def test_tokens_are_dealt_evenly_to_experts(num_experts: int, expected: list[str]) -> None:
    # Two of the experts for each of 16 tokens; gates and columns are one product.
    profile = traced_config(
        model_type="mixtral", architectures=["MixtralForCausalLM"], hidden_size=64,
        intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, vocab_size=128,
        num_key_value_heads=4, num_local_experts=num_experts, num_experts_per_tok=2,
    )  # fmt: skip
    layer = profile.layers[1]
    assert texts(layer)[0] == "4 x 16x64x64"
    assert f"16x64x{num_experts}" in texts(layer)  # the router
    assert set(expected) <= set(texts(layer))
    assert sum(each.flops for each in layer.matrix_products) == pytest.approx(layer.forward_flops)


@pytest.mark.parametrize("name", NAMES)
def test_products_have_the_flops_of_their_layer(name: str) -> None:
    for layer in profile_of(name).layers:
        found = sum(product.flops for product in layer.matrix_products)
        assert found == pytest.approx(layer.forward_flops, rel=0.01), layer.name


def test_modules_of_one_layer_have_their_products_together() -> None:
    head = profile_of("bert").layers[-1]
    assert texts(head) == ["12x32x32", "12x32x64"]
    tables = profile_of("gpt2").layers[0]
    assert tables.kind.count("+") == 2
    assert (texts(tables), tables.num_kernels) == ([], 3)  # two look-ups and their sum


def test_kernels_are_what_computes_or_copies_and_is_not_shared_by_a_stage() -> None:
    kernels = {layer.kind: layer.num_kernels for layer in profile_of("sequential").layers}
    assert (kernels["Flatten"], kernels["ReLU"]) == (0, 1)
    # The first block computes the rotary tables of all: they are of a stage.
    blocks = [each for each in profile_of("llama").layers if each.kind == "LlamaDecoderLayer"]
    assert len({each.num_kernels for each in blocks}) == 1
    # Linear, batch norm and its counter of batches.
    assert [each.num_kernels for each in traced("normalised", "8").layers][:2] == [1, 2]
    aten = torch.ops.aten
    assert [
        launches_kernel(each)
        for each in (aten.mm.default, aten.add_.Tensor, aten.view.default, aten.empty_like.default)
    ] == [True, True, False, False]
