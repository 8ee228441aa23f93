"""Where models can be cut, and what crosses the cuts."""

from __future__ import annotations

import pytest

from heterps_runtime.models.build import build_module
from heterps_runtime.models.layers import Layer, layers_of, parameter_layers
from heterps_runtime.models.recording import Recording
from heterps_runtime.models.recordings import record
from tests.runtime.small_models import NAMES, source_of


def _recorded(name: str, batch_size: int = 2) -> tuple[Recording, tuple[Layer, ...]]:
    source = source_of(name)
    recording = record(source, build_module(source), batch_size)
    return recording, layers_of(recording)


def _names(name: str) -> list[str]:
    return [layer.name for layer in _recorded(name)[1]]


def test_llama_is_cut_behind_every_decoder_layer() -> None:
    layers = [f"model.layers.{i}" for i in range(4)]
    assert _names("llama") == ["model.embed_tokens", *layers, "model.norm+lm_head"]


def test_gpt2_adds_its_embeddings_in_one_layer() -> None:
    names = _names("gpt2")
    assert names[0] == "transformer.wte+transformer.wpe+transformer.drop"
    assert names[1:5] == [f"transformer.h.{i}" for i in range(4)]
    assert names[5] == "transformer.ln_f+lm_head"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", ["bert.embeddings", *(f"bert.encoder.layer.{i}" for i in range(3)), "cls"]),
        (
            "vit",
            [
                "vit.embeddings",
                *(f"vit.layers.{i}" for i in range(3)),
                "vit.layernorm+classifier",
            ],
        ),
    ],
)
def test_encoders_are_cut_at_their_layers(name: str, expected: list[str]) -> None:
    assert _names(name) == expected


def test_resnet_is_cut_at_its_bottlenecks() -> None:
    bottlenecks = [f"resnet.encoder.stages.{i}.layers.{j}" for i in (0, 1) for j in (0, 1)]
    tail = ["resnet.pooler", "classifier.0", "classifier.1"]
    assert _names("resnet") == ["resnet.embedder", *bottlenecks, *tail]


def test_t5_carries_hidden_state_position_bias_and_encoder_output() -> None:
    recording, layers = _recorded("t5", batch_size=3)
    behind = {layer.name: [recording.spec(s).shape for s in layer.crossing] for layer in layers}
    assert behind["encoder.block.0.layer.0"] == [(3, 12, 32), (1, 4, 12, 12)]
    # Encoder output, hidden state, and the biases of self and cross attention.
    assert (3, 12, 32) in behind["decoder.block.0.layer.1"]
    assert len(behind["decoder.block.0.layer.1"]) > 2


def test_every_table_of_the_click_through_model_is_a_layer() -> None:
    recording, layers = _recorded("ctr")
    tables = [layer for layer in layers if layer.name.startswith("tables.")]
    assert len(tables) == 26
    assert len(tables[9].crossing) == 10
    assert all(recording.spec(source).shape == (2, 16) for source in tables[9].crossing)


def test_a_long_skip_crosses_the_cuts_that_it_spans() -> None:
    _, layers = _recorded("long_skip")
    assert layers[0].name == "start"
    assert len(layers[2].crossing) == 2
    assert layers[-1].name == "blocks.2.1+end"


def test_residual_additions_in_glue_keep_their_layers_together() -> None:
    assert _names("shortcut")[0] == "start"
    assert _names("shortcut")[-1].endswith("+end")


def test_a_module_that_runs_twice_is_two_layers_with_shared_parameters() -> None:
    _, layers = _recorded("repeated")
    assert [layer.name for layer in layers][1:7] == [
        "blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1", "blocks.0.0#2", "blocks.0.1#2",
    ]  # fmt: skip
    assert parameter_layers(layers)["blocks.0.0.weight"] == (1, 5)


def test_tied_parameters_belong_to_the_first_and_the_last_layer() -> None:
    _, layers = _recorded("gpt2")
    assert parameter_layers(layers)["transformer.wte.weight"] == (0, 5)


def test_a_parameter_that_glue_reads_belongs_to_the_layers_behind_the_glue() -> None:
    _, layers = _recorded("root_parameter")
    assert parameter_layers(layers)["scale"] == (0, len(layers) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_layers_cover_all_calls_once_and_every_cut_is_crossed(name: str) -> None:
    recording, layers = _recorded(name)
    assert [call for layer in layers for call in layer.calls] == list(range(len(recording.calls)))
    assert all(layer.crossing for layer in layers[:-1])
    assert layers[-1].crossing == ()
    assert len({layer.name for layer in layers}) == len(layers)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_division_does_not_depend_on_the_batch_size(name: str) -> None:
    assert _recorded(name, 2)[1] == _recorded(name, 5)[1]
