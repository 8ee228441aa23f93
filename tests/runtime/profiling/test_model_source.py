"""MODEL: what users write, what they get, and what they are told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from heterps_configs.documents.model_profile import InputSpecification
from heterps_configs.errors import HeterpsError
from heterps_configs.library import shipped
from heterps_runtime.models import huggingface
from heterps_runtime.models.build import build_module
from heterps_runtime.models.huggingface import huggingface_source
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
        (f"{HERE}:WIDTH", "is not a function"),
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
        ({"model_type": "no-such-type"}, "config of no-such-type"),
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
        ({**CONFIGS["llama"], "architectures": ["LlamaModel"]}, "loss is not known"),
    ],
)
def test_a_config_that_transformers_refuses_gets_one_line(
    config: dict[str, object], reason: str
) -> None:
    with pytest.raises(HeterpsError, match=reason) as info:
        huggingface_source(config)
    assert "\n" not in str(info.value)


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
        huggingface.huggingface_source(CONFIGS["llama"])


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
