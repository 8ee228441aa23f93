"""What `heterps profile` says of a model."""

from __future__ import annotations

from rich.console import Console

from heterps.reports.profile_tables import MAX_JOINED_LINES, print_layers, print_profile
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.matrix_product import MatrixProduct
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_profile


def _printed(*layers: LayerProfile) -> str:
    console = Console(width=200, record=True)
    print_profile(ModelProfile(name="model", layers=layers), console)
    return console.export_text()


def _layer(name: str, *reasons: str) -> LayerProfile:
    return LayerProfile(
        name=name, kind="Linear", num_parameters=1, forward_flops=1, backward_flops=1,
        activation_bytes=1, output_bytes=1, joined_because=reasons,
    )  # fmt: skip


def test_layers_of_several_modules_are_named_with_the_reason() -> None:
    text = _printed(_layer("first"), _layer("norm+head", "norm multiplies no matrices"))
    assert "one layer: norm+head (norm multiplies no matrices)" in text
    assert "one layer: first" not in text


def test_a_long_list_of_joined_layers_ends_with_a_count() -> None:
    layers = [_layer(f"{i}+{i}", "why") for i in range(MAX_JOINED_LINES + 3)]
    text = _printed(*layers)
    assert text.count("one layer:") == MAX_JOINED_LINES
    assert "and 3 more layers" in text


def _explained(profile: ModelProfile) -> str:
    console = Console(width=100, record=True)
    print_layers(profile, {}, console)
    return console.export_text()


def test_layers_that_compute_the_same_have_one_line_of_kernels_and_products() -> None:
    block = _layer("a").changed(
        num_kernels=9,
        matrix_products=(
            MatrixProduct(rows=8, inner=4, columns=6, count=2),
            MatrixProduct(rows=8, inner=2, columns=8, count=4, factors="activations"),
        ),
    )
    other = _layer("b").changed(num_parameters=2, num_kernels=1)
    layers = (block, block.changed(name="c"), other, block.changed(name="d"))
    text = _explained(ModelProfile(name="model", layers=layers))
    assert "  0-1, 3: 9 kernels; 2 x 8x4x6, activations 4 x 8x2x8\n" in text
    assert "  2: 1 kernel\n" in text


def test_of_a_profile_that_knows_no_products_none_are_shown() -> None:
    assert "kernels" not in _explained(ModelProfile(name="model", layers=(_layer("a"),)))


def test_the_blocks_of_a_shipped_model_are_one_line() -> None:
    attention = "fused activations 32 x 2048x128x2048, fused activations 32 x 2048x2048x128"
    expected = f"4 x 2048x4096x4096, {attention}, 2 x 2048x4096x11008, 2048x11008x4096\n"
    text = _explained(load_profile("llama-7b"))
    assert f"  1-32: 38 kernels; {expected}" in text


def _measured(launch_s: tuple[float, ...]) -> str:
    entry = Measurement(
        device_type="H200-141G", micro_batch_size=4, forward_s=(0.001, 0.001, 0.005),
        backward_s=(0.002, 0.002, 0.006), launch_s=launch_s,
    )  # fmt: skip
    layers = tuple(_layer(name) for name in "abc")
    console = Console(width=200, record=True)
    print_profile(ModelProfile(name="model", layers=layers, measurements=(entry,)), console)
    return console.export_text()


def test_a_gpu_that_waits_for_its_host_is_told_with_what_a_stage_may_take() -> None:
    text = _measured((0.003, 0.003, 0.002))
    assert "the GPU waits for its host in 2 of 3 layers at micro-batch 4" in text
    # 17 ms layer by layer; the last layer's 11 ms hide what launching the others takes.
    assert "take 17 ms layer by layer and may take 11 ms in one stage" in text


def test_of_a_gpu_that_is_busy_nothing_is_said() -> None:
    assert "waits for its host" not in _measured((0.001, 0.001, 0.001))
    assert "waits for its host" not in _measured(())
