"""FLOPs of operations: against multiply-adds counted one by one, and against published formulas."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.models.flop_formulas import UncountedOperations, flops_of
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.small_models import HERE

TOKENS = 512


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.flops += flops_of(func, args, kwargs or {}, result) or 0.0
        return result


def _passes(module: nn.Module, *inputs: Tensor) -> tuple[float, float]:
    """FLOPs of a forward and a backward pass."""
    with _Counted() as counter:
        output = module(*inputs)
        forward = counter.flops
        (output[0] if isinstance(output, tuple) else output).sum().backward()
    return forward, counter.flops - forward


@st.composite
def _convolutions(draw: st.DrawFn) -> tuple[Any, Tensor]:
    dims = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 2, 4]))
    kinds = {
        1: (nn.Conv1d, nn.ConvTranspose1d),
        2: (nn.Conv2d, nn.ConvTranspose2d),
        3: (nn.Conv3d, nn.ConvTranspose3d),
    }
    kernel, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    module = draw(st.sampled_from(kinds[dims]))(
        groups * draw(st.integers(1, 2)),
        groups * draw(st.integers(1, 2)),
        kernel,
        stride=draw(st.integers(1, 2)),
        padding=draw(st.integers(0, 1)),
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
        device="meta",
    )
    smallest = (kernel - 1) * dilation + 1
    sizes = [smallest + 2 + draw(st.integers(0, 2)) for _ in range(dims)]
    batch_size = draw(st.integers(1, 2))
    inputs = torch.empty(batch_size, module.in_channels, *sizes, device="meta")
    return module, inputs.requires_grad_()


@settings(max_examples=40, deadline=None)
@given(_convolutions())
def test_a_convolution_takes_two_flops_for_each_multiply_add(
    case: tuple[nn.Conv1d, Tensor],
) -> None:
    module, inputs = case
    output = module(inputs)
    moving = inputs if type(module).__name__.startswith("ConvTranspose") else output
    count = 0
    for _ in itertools.product(*(range(size) for size in (moving.shape[0], *moving.shape[2:]))):
        for _ in itertools.product(*(range(size) for size in module.kernel_size)):
            count += module.in_channels // module.groups * module.out_channels
    forward, backward = _passes(module, inputs)
    assert forward == 2 * count
    # One product each for the gradients of input and weight.
    assert backward == 2 * forward


def test_a_first_convolution_needs_no_gradient_of_its_input() -> None:
    forward, backward = _passes(nn.Conv2d(4, 4, 3, groups=2), torch.randn(1, 4, 8, 8))
    assert backward == forward


def test_a_depthwise_convolution_is_divided_by_its_groups_backward() -> None:
    inputs = torch.randn(1, 64, 32, 32, requires_grad=True)
    _, backward = _passes(nn.Conv2d(64, 64, 3, padding=1, groups=64), inputs)
    assert backward == pytest.approx(2.4e6, rel=0.02)


@pytest.mark.parametrize(("kind", "num_gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_are_counted_in_both_passes(kind: type[nn.Module], num_gates: int) -> None:
    inputs = torch.randn(32, 1, 64, requires_grad=True)
    forward, backward = _passes(kind(64, 64), inputs)
    assert forward == num_gates * 2 * 32 * (64 * 64 + 64 * 64)
    # The first step has no hidden state in front of it that would need a gradient.
    assert backward == pytest.approx(2 * forward, rel=0.02)


def test_an_lstm_counts_as_its_products() -> None:
    assert _passes(nn.LSTM(64, 64), torch.randn(32, 1, 64))[0] == 2_097_152


def test_a_bilinear_layer_is_counted() -> None:
    inputs = torch.randn(7, 3, requires_grad=True), torch.randn(7, 4, requires_grad=True)
    assert _passes(nn.Bilinear(3, 4, 5), *inputs) == (2 * 7 * 3 * 4 * 5, 3 * 2 * 7 * 3 * 4 * 5)


def _traced(config: dict[str, Any]) -> ModelProfile:
    return trace_source(huggingface_source(config, TOKENS), config["model_type"], "bfloat16")


def _forward_flops(profile: ModelProfile) -> float:
    return sum(layer.forward_flops for layer in profile.layers)


def test_mixtral_counts_the_experts_that_a_token_meets() -> None:
    profile = _traced(
        {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_hidden_layers": 1}
    )
    hidden, inner, vocabulary = 4096, 14336, 32000
    attention = 2 * hidden * hidden + 2 * hidden * 1024
    weights = attention + 8 * hidden + 2 * 3 * hidden * inner
    layer = 2 * TOKENS * weights + 2 * 2 * TOKENS * TOKENS * hidden
    head = 2 * TOKENS * vocabulary * hidden
    assert _forward_flops(profile) == pytest.approx(layer + head, rel=1e-3)
    assert 32 * layer + head == pytest.approx(13.2e12, rel=0.01)
    backward = sum(layer.backward_flops for layer in profile.layers)
    assert backward == pytest.approx(2 * (layer + head), rel=0.01)


def test_qwen2_moe_counts_routed_and_shared_experts() -> None:
    profile = _traced(
        {"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"],
         "num_hidden_layers": 1}
    )  # fmt: skip
    hidden, routed, shared, vocabulary = 2048, 4 * 1408, 5632, 151936
    weights = 4 * hidden * hidden + 3 * hidden * (routed + shared) + (60 + 1) * hidden
    layer = 2 * TOKENS * weights + 2 * 2 * TOKENS * TOKENS * hidden
    head = 2 * TOKENS * vocabulary * hidden
    assert _forward_flops(profile) == pytest.approx(layer + head, rel=1e-3)


def test_experts_in_float32_are_traced_and_counted_alike() -> None:
    config = {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 128, "num_local_experts": 4,
    }  # fmt: skip
    source = huggingface_source(config, 16)
    full, half = (trace_source(source, "mixtral", dtype) for dtype in ("float32", "bfloat16"))
    assert _forward_flops(full) == _forward_flops(half)


def test_an_operation_without_a_formula_is_named_once_with_how_often_it_ran() -> None:
    source = factory_source(f"{HERE}:spectrum", ["x=8:float32"])
    with pytest.warns(UserWarning, match=r"spectrum: .*aten::_fft_r2c \(2 x\)") as caught:
        trace_source(source, "spectrum")
    assert len(caught) == 1


def test_counted_and_linear_operations_are_not_named() -> None:
    uncounted = UncountedOperations()
    for operation in (
        torch.ops.aten.add.Tensor, torch.ops.aten.view.default, torch.ops.aten.sum.dim_IntList,
        torch.ops.aten.copy_.default, torch.ops.aten.native_layer_norm.default,
        torch.ops.aten.gelu_backward.default, torch.ops.aten.elu_backward.default,
    ):  # fmt: skip
        uncounted.note(operation)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        uncounted.warn("model")
