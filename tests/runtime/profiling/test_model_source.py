"""MODEL: what users write, what they get, and what they are told."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.source import InputSpecification
from heterps_configs.errors import HeterpsError
from heterps_configs.library import shipped
from heterps_runtime.huggingface import inputs as natural
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.models.build import build_module
from heterps_runtime.profiling.model_source import factory_source, parse_input, resolve_profile
from tests.runtime.small_models import CONFIGS, HERE, NAMES, source_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=32:float32", InputSpecification(name="x", shape=(32,))),
        ("x=3,8,8:float32", InputSpecification(name="x", shape=(3, 8, 8))),
        ("x=3x8x8:float32", InputSpecification(name="x", shape=(3, 8, 8))),
        ("y=:float32", InputSpecification(name="y")),
        (
            "ids=128:int64<32000",
            InputSpecification(name="ids", shape=(128,), dtype="int64", num_classes=32000),
        ),
    ],
)
def test_inputs_are_written_as_name_shape_and_type(text: str, expected: InputSpecification) -> None:
    assert parse_input(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x", "expected name=shape:dtype"),
        ("x=32", "expected name=shape:dtype"),
        ("x=32:float64", "expected name=shape:dtype"),
        ("x=-1:float32", "expected name=shape:dtype"),
        ("x=0:float32", "a size is 0"),
        ("ids=128:int64", "needs a limit"),
        ("ids=128:int64<0", "needs a limit"),
        ("x=32:float32<5", "needs a limit"),
    ],
)
def test_a_malformed_input_is_named(text: str, reason: str) -> None:
    with pytest.raises(HeterpsError, match=reason) as info:
        parse_input(text)
    assert repr(text) in str(info.value)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (f"{HERE}:raises", "raises raised RuntimeError: no such thing"),
        (f"{HERE}:returns_number", "returned int, expected a torch.nn.Module"),
        (f"{HERE}:sequentia", "has no sequentia; did you mean sequential"),
        (f"{HERE}:WIDTH", "is of type int, expected a function"),
        ("no_such_package.models:make", "cannot import no_such_package.models"),
    ],
)
def test_a_broken_factory_gets_one_line(factory: str, reason: str) -> None:
    with pytest.raises(HeterpsError, match=reason) as info:
        resolve_profile(factory, ["x=8:float32"])
    assert "\n" not in str(info.value)
    assert str(info.value).startswith(factory)


def test_a_factory_needs_inputs_with_different_names() -> None:
    with pytest.raises(HeterpsError, match="say what it takes"):
        factory_source(f"{HERE}:sequential", [])
    with pytest.raises(HeterpsError, match="same name"):
        factory_source(f"{HERE}:sequential", ["x=8:float32", "x=8:float32"])


def test_a_factory_becomes_a_profile_with_a_target_from_its_output() -> None:
    profile = resolve_profile(f"{HERE}:sequential", ["x=8:float32"])
    assert profile.name == f"{HERE}:sequential"
    assert profile.source is not None
    assert profile.source.loss == "cross_entropy"
    assert profile.source.target == InputSpecification(name="target", dtype="int64", num_classes=5)
    given = factory_source(f"{HERE}:sequential", ["x=8:float32", "target=5:float32"])
    assert given.loss == "mean_squared_error"
    assert [entry.name for entry in given.inputs] == ["x"]


@pytest.mark.slow
def test_a_config_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**CONFIGS["llama"], "torch_dtype": "float16"})
    )
    by_folder = resolve_profile(str(tmp_path), sequence_length=12)
    by_file = resolve_profile(str(tmp_path / "config.json"), sequence_length=12)
    assert by_folder.layers == by_file.layers
    assert by_folder.dtype == "float16"
    assert by_folder.source is not None
    assert by_folder.source.architecture == "LlamaForCausalLM"
    assert by_folder.source.inputs[0].shape == (12,)


def test_a_profile_file_is_read_as_it_is(tmp_path: Path) -> None:
    profile = resolve_profile("llama-tiny")
    profile.to_file(tmp_path / "mine.yaml")
    assert resolve_profile(str(tmp_path / "mine.yaml")) == profile


def test_near_names_are_suggested() -> None:
    with pytest.raises(HeterpsError, match="llama-7b"):
        resolve_profile("lama-7b")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "no-such-type"}, "knows no 'no-such-type'"),
        ({"model_type": "llama", "architectures": ["NoModel"]}, "no class of models 'NoModel'"),
        ({"model_type": "llama", "architectures": ["Trainer"]}, "no class of models 'Trainer'"),
        ({"model_type": "llama", "auto_map": {"AutoModel": "a.B"}}, "auto_map: code and weights"),
        (
            {"model_type": "llama", "_attn_implementation": "stranger/kernel"},
            "_attn_implementation: code and weights",
        ),
        (
            {"model_type": "llama", "text_config": [{"use_pretrained_backbone": True}]},
            "use_pretrained_backbone: code and weights",
        ),
        ({**CONFIGS["llama"], "architectures": ["LlamaForQuestionAnswering"]}, "loss is not known"),
    ],
)
def test_a_config_that_transformers_refuses_gets_one_line(
    config: dict[str, object], reason: str
) -> None:
    with pytest.raises(HeterpsError, match=reason) as info:
        huggingface_source(config)
    assert "\n" not in str(info.value)


def test_an_unknown_type_of_models_gets_a_short_line(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    for name, hint in (("lama", r"did you mean llama"), ("zzzz" * 1000, "a newer release")):
        file.write_text(json.dumps({"model_type": name, "architectures": ["A"]}))
        with pytest.raises(HeterpsError, match=rf"knows no '.*'; {hint}") as refused:
            resolve_profile(str(file))
        assert len(str(refused.value)) < 200


def test_positions_that_are_learned_end_somewhere() -> None:
    def of(name: str) -> int | None:
        config = transformers.AutoConfig.for_model(name)
        return natural.learned_positions(config)

    found = {name: of(name) for name in ("gpt2", "bert", "roberta", "whisper", "llama", "bloom")}
    # Of RoBERTa's 512, the first two are not of tokens.
    assert found == {
        "gpt2": 1024, "bert": 512, "roberta": 510, "whisper": 448, "llama": None, "bloom": None,
    }  # fmt: skip


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match=r"has no config\.json"):
        resolve_profile(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(HeterpsError, match="has no model_type"):
        resolve_profile(str(tmp_path))


def test_without_transformers_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(HeterpsError, match=r"pip install 'heterps\[hf\]'"):
        huggingface_source(CONFIGS["llama"])


@pytest.mark.parametrize("name", NAMES)
def test_building_without_memory_leaves_true_buffers(name: str) -> None:
    on_meta, real = build_module(source_of(name)), build_module(source_of(name), device="cpu")
    assert all(parameter.is_meta for parameter in on_meta.parameters())
    assert [n for n, _ in on_meta.named_parameters()] == [n for n, _ in real.named_parameters()]
    buffers = dict(real.named_buffers())
    for key, buffer in on_meta.named_buffers():
        assert torch.equal(buffer, buffers[key]), key


def test_a_parameter_that_two_modules_share_stays_shared() -> None:
    for source in (factory_source(f"{HERE}:tied", ["x=4:float32"]), source_of("gpt2")):
        on_meta, real = build_module(source), build_module(source, device="cpu")
        assert len(list(on_meta.parameters())) == len(list(real.parameters()))


def test_nn_module_is_restored_after_building() -> None:
    build_module(source_of("sequential"))
    assert not nn.Linear(2, 2).weight.is_meta


def test_resolving_a_shipped_name_imports_no_torch() -> None:
    script = (
        "import sys; from heterps_runtime.profiling.model_source import resolve_profile;"
        "resolve_profile('llama-7b'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_models_are_shipped() -> None:
    assert {"llama-7b", "llama-70b", "gpt2", "bert-large", "vit-large", "resnet-50", "resnet-152",
            "ctr", "llama-tiny", "perceptron"} <= set(shipped("models"))  # fmt: skip


def _config(folder: Path, name: str, **changed: object) -> str:
    (folder / "config.json").write_text(json.dumps({**CONFIGS[name], **changed}))
    return str(folder)


def test_a_config_without_dtype_is_traced_in_bfloat16_and_says_so(tmp_path: Path) -> None:
    reference = _config(tmp_path, "llama")
    with pytest.warns(UserWarning, match="names no dtype, so bfloat16 is taken"):
        profile = resolve_profile(reference, sequence_length=8)
    assert profile.dtype == "bfloat16"
    assert profile.layers[0].output_bytes == 8 * 32 * 2


@pytest.mark.parametrize(
    ("named", "asked", "expected"),
    [("float16", None, "float16"), ("float32", None, "float32"), (None, "float32", "float32"),
     ("float32", "bfloat16", "bfloat16")],
)  # fmt: skip
def test_a_dtype_that_is_named_or_asked_for_is_the_traced_one(
    tmp_path: Path, named: str | None, asked: Dtype | None, expected: str
) -> None:
    reference = _config(tmp_path, "llama", num_hidden_layers=1, dtype=named)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_profile(reference, sequence_length=8, dtype=asked).dtype == expected


@pytest.mark.slow
def test_a_shipped_model_is_traced_again_for_another_length() -> None:
    shipped_profile = resolve_profile("llama-tiny")
    assert resolve_profile("llama-tiny", sequence_length=64) == shipped_profile
    shorter = resolve_profile("llama-tiny", sequence_length=16)
    assert shorter.layers[1].output_bytes == shipped_profile.layers[1].output_bytes / 4
    given = resolve_profile("llama-tiny", ["input_ids=16:int64<256"])
    assert given.layers == shorter.layers


def test_a_shipped_factory_is_traced_again_for_other_inputs() -> None:
    profile = resolve_profile("perceptron", ["target=:int64<5"])
    assert profile.source is not None
    assert profile.source.target is not None
    assert profile.source.target.num_classes == 5
    assert profile.source.inputs[0].shape == (64,)


@pytest.mark.parametrize(
    ("reference", "inputs", "length", "reason"),
    [
        ("llama-tiny", ["ids=16:int64<256"], None, "no such input"),
        ("perceptron", ["y=64:float32"], None, "perceptron takes x and target"),
        ("perceptron", [], 16, "--sequence-length is for language models"),
        ("gpt2", [], 1025, "1025 tokens, and the model learns positions for 1024: "),
        ("gpt2", ["input_ids=4096:int64<9"], None, "4096 tokens, and the model learns positions"),
        ("resnet-50", [], 16, "takes no tokens"),
        ("llama-tiny", ["input_ids=8:int64<256"], 16, "differ"),
    ],
)
def test_options_that_a_saved_model_cannot_follow_are_refused(
    reference: str, inputs: list[str], length: int | None, reason: str
) -> None:
    with pytest.raises(HeterpsError, match=reason):
        resolve_profile(reference, inputs, sequence_length=length)


def test_a_profile_without_source_cannot_be_traced_again(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    resolve_profile("perceptron").changed(source=None).to_file(path)
    with pytest.raises(HeterpsError, match="cannot be traced again"):
        resolve_profile(str(path), ["x=64:float32"])


SPEECH: dict[str, dict[str, Any]] = {
    "whisper": {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
        "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "vocab_size": 64, "num_mel_bins": 8, "max_source_positions": 10, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "dtype": "float32",
    },
    "wav2vec2": {
        "model_type": "wav2vec2", "architectures": ["Wav2Vec2ForSequenceClassification"],
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "conv_dim": [8, 8], "conv_stride": [5, 2], "conv_kernel": [10, 3],
        "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
        "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "dtype": "float32",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("whisper", ["input_features=8,20:float32", "decoder_input_ids=6:int64<64"]),
        ("wav2vec2", ["input_values=400:float32"]),
    ],
)
def test_inputs_of_speech_models_are_taken(tmp_path: Path, name: str, inputs: list[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SPEECH[name]))
    profile = resolve_profile(str(path), inputs)
    assert profile.source is not None
    assert profile.source.inputs == tuple(map(parse_input, inputs))
    assert profile.num_layers > 4


def test_large_parameters_take_no_memory_while_a_model_is_built() -> None:
    source = factory_source(f"{HERE}:large", ["x=4:int64<10", "target=4:int64<8"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    module = build_module(source)
    assert sum(parameter.numel() for parameter in module.parameters()) > 2**32
    assert torch.equal(module[1].ones, torch.ones(1024, 1024))  # type: ignore[index]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10
    assert grown < 200
