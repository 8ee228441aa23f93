"""A config alone says what a model takes and what its loss compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parity.zoo_models import TINY
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.profiling.model_source import resolve_profile


def source_of(name: str, **changed: Any) -> ModelSource:
    return huggingface_source({"model_type": name, **TINY[name], **changed})


def shapes(source: ModelSource) -> dict[str, tuple[int, ...]]:
    return {entry.name: entry.shape for entry in source.inputs}


@pytest.mark.parametrize(
    ("name", "architecture", "inputs", "target", "loss"),
    [
        ("llama", "LlamaForCausalLM", {"input_ids": (512,)}, (512,), "cross_entropy"),
        ("bert", "BertForMaskedLM", {"input_ids": (64,)}, (64,), "cross_entropy"),
        ("vit", "ViTForImageClassification", {"pixel_values": (3, 32, 32)}, (), "cross_entropy"),
        ("wav2vec2", "Wav2Vec2ForCTC", {"input_values": (160_000,)}, (1999,), "ctc"),
        (
            "whisper",
            "WhisperForConditionalGeneration",
            {"input_features": (16, 64), "decoder_input_ids": (32,)},
            (32,),
            "cross_entropy",
        ),
        (
            "clip",
            "CLIPModel",
            {"input_ids": (64,), "pixel_values": (3, 32, 32)},
            (),
            "contrastive",
        ),
        (
            "llava",
            "LlavaForConditionalGeneration",
            {"input_ids": (528,), "pixel_values": (3, 32, 32)},
            (528,),
            "cross_entropy",
        ),
    ],
)
def test_inputs_and_loss_are_those_that_the_class_implies(
    name: str,
    architecture: str,
    inputs: dict[str, tuple[int, ...]],
    target: tuple[int, ...],
    loss: str,
) -> None:
    source = source_of(name)
    assert source.architecture == architecture
    assert shapes(source) == inputs
    assert source.target is not None
    assert (source.target.shape, source.loss) == (target, loss)


def test_a_classifier_of_sounds_takes_a_picture_of_frequencies() -> None:
    source = huggingface_source(
        {"model_type": "audio-spectrogram-transformer", "max_length": 64, "num_mel_bins": 32}
    )
    assert source.architecture == "ASTForAudioClassification"
    assert shapes(source) == {"input_values": (64, 32)}


def test_tokens_that_stand_for_the_image_need_room() -> None:
    tokens = source_of("llava").inputs[0]
    # Sixteen patches; the token of the class is dropped.
    assert (tokens.placeholder, tokens.num_placeholders) == (255, 16)
    with pytest.raises(HeterpsError, match="--sequence-length 10: 16 tokens stand for the image"):
        huggingface_source({"model_type": "llava", **TINY["llava"]}, sequence_length=10)


def test_what_a_run_leaves_out_is_said() -> None:
    with pytest.warns(UserWarning, match="layerdrop, apply_spec_augment is ignored"):
        source_of("wav2vec2", layerdrop=0.1, apply_spec_augment=True)


def test_a_model_without_head_gets_a_loss_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    config = {"model_type": "bert", "architectures": ["BertModel"], "dtype": "float32"}
    file.write_text(json.dumps({**TINY["bert"], **config}))
    with pytest.warns(UserWarning, match="BertModel: has no head, so no loss of its own"):
        profile = resolve_profile(str(file), sequence_length=8)
    assert profile.source is not None
    assert profile.source.loss == "mean_squared_error"
    assert profile.source.target is not None
    assert profile.source.target.shape == (8, 64)


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("vocab_size", 0, "vocab_size: must be at least 1, got 0"),
        ("n_positions", 0, "n_positions: must be at least 1, got 0"),
        ("architectures", [""], "architectures: must be a list of text"),
    ],
)
def test_sizes_of_nothing_are_refused_with_the_name_of_the_file(
    tmp_path: Path, field: str, value: object, problem: str
) -> None:
    path = tmp_path / "hf.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2, field: value}))
    with pytest.raises(HeterpsError, match=f"hf.json: {problem}"):
        resolve_profile(str(path))
