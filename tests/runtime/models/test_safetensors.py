"""Folders of weights as transformers writes them: every rank reads its own tensors, once."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.models.build import arguments, build_module
from heterps_runtime.models.recording import select_output
from heterps_runtime.models.safetensors import SafetensorsFolder
from heterps_runtime.profiling.model_source import resolve_profile
from heterps_runtime.run.verify import max_difference, reference_losses
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.stage import StagePart
from heterps_runtime.stages.start_values import Initialised, StartValues
from tests.runtime.live_bytes import LiveBytes
from tests.runtime.small_models import profile_of, source_of
from tests.runtime.small_runs import chain_of, problem_of

MODELS = ("llama", "gpt2")
_EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders that `save_pretrained` wrote, in several shards."""

    @cache
    def folder(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        torch.manual_seed(7)
        module: Any = build_module(source_of(name), device="cpu")
        module.save_pretrained(path, max_shard_size="8KB")
        return path

    return folder


def _loaded_by_transformers(source: ModelSource, folder: Path) -> nn.Module:
    import transformers

    module = getattr(transformers, source.architecture or "").from_pretrained(folder)
    assert isinstance(module, nn.Module)
    return module


def _local_run(problem: Problem, *cuts: int, weights: Path) -> LocalRun:
    plan = chain_of(problem, *cuts)
    specification = LocalRun.of(problem, plan).specification
    return LocalRun(specification.changed(weights=str(weights)))


@pytest.mark.parametrize("name", [*MODELS, "resnet"])
@pytest.mark.filterwarnings("ignore:batch normalisation")
def test_stages_read_what_transformers_would_and_nothing_else(
    folders: Callable[[str], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, profile, source = folders(name), profile_of(name), source_of(name)
    assert len(list(folder.glob("*.safetensors"))) > 1
    expected = _loaded_by_transformers(source, folder).state_dict()
    asked: list[str] = []
    read = SafetensorsFolder._read

    def count(self: SafetensorsFolder, key: str, shape: torch.Size, name: str) -> Tensor:
        asked.append(key)
        return read(self, key, shape, name)

    monkeypatch.setattr(SafetensorsFolder, "_read", count)
    for first, last in ((0, 1), (2, 2), (3, profile.num_layers - 1)):
        asked.clear()
        start = SafetensorsFolder(folder)
        stage = build_stage(source, profile, StagePart(first, last, 2, seed=0), start=start)
        held: dict[str, Tensor] = {**stage.parameters_by_name(), **stage.buffers_by_name()}
        assert all(torch.equal(tensor, expected[name]) for name, tensor in held.items())
        assert len(asked) == len(set(asked)) == len(held)
        assert start.remarks() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_pipeline_from_weights_trains_like_one_process(
    folders: Callable[[str], Path], name: str
) -> None:
    run = _local_run(problem_of(name), 2, 3, weights=folders(name))
    losses = [run.step(), run.step()]
    specification = run.specification.changed(num_steps=2)
    assert max_difference(losses, reference_losses(specification)) < 1e-5
    # Tables of positions are in no file; from other tables another loss would follow.
    source = source_of(name)
    module = _loaded_by_transformers(source, folders(name))
    stage = build_stage(
        source,
        profile_of(name),
        StagePart(0, profile_of(name).num_layers - 1, 2, seed=0),
        start=SafetensorsFolder(folders(name)),
    )
    inputs = {"input_ids": torch.arange(24).reshape(2, 12) % 64}
    positional, named = arguments(source, inputs)
    expected = select_output(module(*positional, **named))
    assert torch.equal(stage.eval()(inputs)[0], expected)


@pytest.mark.parametrize("is_loaded", [True, False])
def test_rank_never_holds_more_than_its_part_and_one_tensor(
    folders: Callable[[str], Path], is_loaded: bool
) -> None:
    source, profile, folder = source_of("gpt2"), profile_of("gpt2"), folders("gpt2")
    start: StartValues = SafetensorsFolder(folder) if is_loaded else Initialised(0)
    with LiveBytes() as building:
        stage = build_stage(source, profile, StagePart(2, 3, 2, seed=0), start=start)
    module = build_module(source)
    with LiveBytes() as filling:
        held = start.parameters(module, stage.parameters_by_name())
    own = [tensor.nbytes for tensor in held.values()]
    assert sum(own) <= filling.most <= sum(own) + max(own)
    # The model's constructor asks for memory of one parameter after another.
    every = [parameter.nbytes for parameter in module.parameters()]
    assert sum(own) <= building.most <= sum(own) + max(every) < sum(every)


def _altered(folder: Path, target: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy in one file, after a change."""
    tensors: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors.update(load_file(file))
    change(tensors)
    target.mkdir()
    save_file(tensors, target / "model.safetensors")
    return target


def _stage(name: str, folder: Path) -> SafetensorsFolder:
    start = SafetensorsFolder(folder)
    build_stage(source_of(name), profile_of(name), StagePart(0, 1, 2, seed=0), start=start)
    return start


def test_base_models_old_names_and_other_names_of_a_tie_are_found(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    def strip(tensors: dict[str, Tensor]) -> None:
        for key in list(tensors):
            tensors[key.removeprefix("transformer.")] = tensors.pop(key)
        tensors["lm_head.weight"] = tensors.pop("wte.weight")
        tensors["h.0.attn.bias"] = torch.zeros(1)  # a mask that old versions saved

    start = _stage("gpt2", _altered(folders("gpt2"), tmp_path / "base", strip))
    assert start.remarks() == []

    def age(tensors: dict[str, Tensor]) -> None:
        for key in list(tensors):
            old = key.replace("LayerNorm.weight", "LayerNorm.gamma")
            tensors[old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensors.pop(key)

    assert _stage("bert", _altered(folders("bert"), tmp_path / "old", age)).remarks() == []


def test_weights_take_the_format_of_the_job(folders: Callable[[str], Path], tmp_path: Path) -> None:
    def halve(tensors: dict[str, Tensor]) -> None:
        tensors.update({key: tensor.bfloat16() for key, tensor in tensors.items()})

    folder = _altered(folders("llama"), tmp_path / "half", halve)
    start = SafetensorsFolder(folder)
    stage = build_stage(
        source_of("llama"), profile_of("llama"), StagePart(0, 0, 2, seed=0), start=start
    )
    (weight,) = stage.parameters_by_name().values()
    assert weight.dtype == torch.float32
    assert torch.equal(weight.bfloat16(), load_file(folder / "model.safetensors")[_EMBEDDING])


def test_missing_unexpected_and_misshapen_tensors_are_named_with_their_file(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = folders("llama")

    def drop(tensors: dict[str, Tensor]) -> None:
        del tensors["model.layers.0.mlp.up_proj.weight"]

    dropped = _altered(folder, tmp_path / "dropped", drop)
    message = r"model\.safetensors: has no weights for model\.layers\.0\.mlp\.up_proj\.weight; is"
    with pytest.raises(HeterpsError, match=message):
        _stage("llama", dropped)

    def add(tensors: dict[str, Tensor]) -> None:
        tensors["vision.weight"] = torch.zeros(1)

    (remark,) = _stage("llama", _altered(folder, tmp_path / "added", add)).remarks()
    assert remark.endswith("model.safetensors: the model has no use for vision.weight")

    def cut(tensors: dict[str, Tensor]) -> None:
        tensors["model.embed_tokens.weight"] = torch.zeros(3, 32)

    message = r"embed_tokens.weight has shape \(3, 32\), and .* of the model \(64, 32\)"
    with pytest.raises(HeterpsError, match=message):
        _stage("llama", _altered(folder, tmp_path / "cut", cut))


def test_broken_folders_are_refused(folders: Callable[[str], Path], tmp_path: Path) -> None:
    whole = _altered(folders("llama"), tmp_path / "whole", lambda tensors: None)
    file = whole / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(HeterpsError, match=r"model\.safetensors: cannot be read"):
        SafetensorsFolder(whole)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(HeterpsError, match=r"index\.json: names gone\.safetensors, which is not"):
        SafetensorsFolder(tmp_path)
    for outside in ("../model.safetensors", "/etc/passwd", "model.safetensors\0"):
        index.write_text(json.dumps({"weight_map": {"a": outside}}))
        with pytest.raises(HeterpsError, match="which is no file of the folder"):
            SafetensorsFolder(tmp_path)
    index.write_text("{}")
    with pytest.raises(HeterpsError, match="weight_map"):
        SafetensorsFolder(tmp_path)


def test_folder_of_weights_is_a_model(folders: Callable[[str], Path]) -> None:
    profile = resolve_profile(str(folders("gpt2")), sequence_length=12)
    assert profile.num_layers == profile_of("gpt2").num_layers
    assert profile.source is not None
    assert profile.source.architecture == "GPT2LMHeadModel"
