"""What `heterps profile` says of a model."""

from __future__ import annotations

from rich.console import Console

from heterps.reports.profile_tables import MAX_JOINED_LINES, print_profile
from heterps_configs.documents.model_profile import LayerProfile, ModelProfile


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
