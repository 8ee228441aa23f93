"""Costs of layers: FLOPs against torch's own counter, bytes against what autograd really keeps."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from heterps_configs.errors import HeterpsError
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.models.build import arguments, build_module
from heterps_runtime.models.data import make_batch
from heterps_runtime.models.losses import loss_sum
from heterps_runtime.models.recording import select_output
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.small_models import HERE, NAMES, profile_of, source_of


@pytest.mark.parametrize(
    "name", ["ctr", "sequential", "in_place", "long_skip", "repeated", "resnet"]
)
def test_the_sum_of_flops_is_what_torch_counts(name: str) -> None:
    source, profile = source_of(name), profile_of(name)
    module = build_module(source, device="cpu")
    inputs, target = make_batch(source, 0, 2, seed=0)
    args, kwargs = arguments(source, inputs)
    with FlopCounterMode(display=False) as counter:
        output = select_output(module(*args, **kwargs))
        forward = counter.get_total_flops()
        loss_sum(source, output, target).backward()  # type: ignore[no-untyped-call]
    assert sum(layer.forward_flops for layer in profile.layers) == forward / 2
    backward = counter.get_total_flops() - forward
    assert sum(layer.backward_flops for layer in profile.layers) == backward / 2


def test_attention_is_charged_as_two_products_and_five_backward() -> None:
    layer = profile_of("llama").layers[1]
    tokens, hidden = 12, 32
    attention = 2 * 2 * tokens * tokens * hidden
    weights = 2 * hidden * hidden + 2 * hidden * hidden // 2 + 3 * hidden * 64
    assert layer.forward_flops == pytest.approx(2 * tokens * weights + attention, rel=1e-3)
    assert layer.backward_flops == pytest.approx(
        2 * 2 * tokens * weights + 2.5 * attention, rel=1e-3
    )


@pytest.mark.parametrize("name", ["sequential", "ctr", "resnet"])
def test_activation_bytes_are_what_autograd_keeps(name: str) -> None:
    source, profile = source_of(name), profile_of(name)
    module = build_module(source, device="cpu")
    inputs, target = make_batch(source, 0, 2, seed=0)
    args, kwargs = arguments(source, inputs)
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_sum(source, select_output(module(*args, **kwargs)), target)
    real = sum(storage.nbytes() for storage in kept.values()) / 2
    traced = sum(
        layer.activation_bytes + layer.shared_bytes + layer.constant_bytes
        for layer in profile.layers
    )
    # Real kernels allocate a few scratch numbers where fake ones do not, and the other way round.
    assert traced == pytest.approx(real, rel=0.03)


def test_output_bytes_are_those_of_the_tensors_that_cross() -> None:
    layers = profile_of("llama").layers
    assert [layer.output_bytes for layer in layers] == [12 * 32 * 4] * 5 + [0]
    tables = [entry for entry in profile_of("ctr").layers if entry.kind == "Embedding"]
    assert [entry.output_bytes for entry in tables] == [16 * 4 * (i + 1) for i in range(26)]


def test_half_precision_halves_the_bytes_of_a_layer() -> None:
    half = trace_source(source_of("llama"), "half", dtype="bfloat16").layers[2]
    full = profile_of("llama").layers[2]
    assert half.output_bytes == full.output_bytes / 2
    assert half.activation_bytes < 0.7 * full.activation_bytes
    assert half.forward_flops == full.forward_flops


def test_equal_decoder_layers_have_equal_costs() -> None:
    for name in ("llama", "gpt2", "bert"):
        inner = [
            entry.model_dump(exclude={"name"})
            for entry in profile_of(name).layers
            if entry.kind == profile_of(name).layers[2].kind
        ]
        assert len(inner) > 2
        assert all(entry == inner[0] for entry in inner)


def test_tied_and_sparse_parameters_are_marked() -> None:
    first, *_, last = profile_of("gpt2").layers
    assert last.tied_to == first.name
    assert last.sparse_parameters == 0
    assert first.sparse_parameters == 64 * 32 + 1024 * 32
    assert profile_of("ctr").layers[0].sparse_parameters == 1000 * 16


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_profile_survives_its_file_and_counts_all_parameters(name: str) -> None:
    profile = profile_of(name)
    assert type(profile).from_mapping(profile.to_mapping()) == profile
    total = sum(p.numel() for p in build_module(source_of(name)).parameters())
    used = sum(layer.num_parameters for layer in profile.layers)
    # `scale` is used only by the model that multiplies by it; tied parameters are used twice.
    assert used >= total - 8


def test_a_forward_pass_that_fails_is_named_in_one_line() -> None:
    with pytest.raises(
        HeterpsError, match=r"fails_in_forward: its forward pass fails on x \(2, 3\)"
    ) as info:
        factory_source(f"{HERE}:fails_in_forward", ["x=3:float32"])
    assert "\n" not in str(info.value)


class Told(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_torch_logs_no_traceback_of_a_forward_pass_that_fails() -> None:
    handler = Told()
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)
    try:
        with pytest.raises(HeterpsError, match="its forward pass fails"):
            factory_source(f"{HERE}:fails_in_forward", ["x=3:float32"])
    finally:
        logger.removeHandler(handler)
    assert handler.records == []


def test_layers_of_a_module_without_parameters_cost_no_flops() -> None:
    relu = next(layer for layer in profile_of("sequential").layers if layer.kind == "ReLU")
    assert relu.forward_flops == relu.num_parameters == 0
    assert relu.memory_traffic_bytes == 2 * 16 * 4


def test_a_model_without_children_is_one_layer() -> None:
    profile = trace_source(factory_source(f"{HERE}:single", ["x=8:float32"]), "single")
    assert [layer.name for layer in profile.layers] == ["Linear"]


def test_more_than_any_layer_may_have_is_told_with_the_layer_and_the_limit() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = {"model_type": "llama", "num_attention_heads": 4, "vocab_size": 64, **sizes}
    source = huggingface_source(config, sequence_length=100_000_000)
    with pytest.raises(HeterpsError, match=r"as it was traced .*shared_bytes: must be at most"):
        trace_source(source, "llama-tiny")
