"""Sailor's layer times as samples of cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heterps.calibration.megatron_model import MegatronShape, traced_megatron
from heterps.calibration.sailor_blocks import GPUS, SHAPES, sailor_samples
from heterps.calibration.samples import published_samples
from heterps_configs.documents.device import device_type_named
from heterps_configs.errors import HeterpsError

SMALL = MegatronShape(64, 4, 1000, sequence_length=32, dropout=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """OPT-350 on a GPU with TF32 and on one without, alone and in a group of two."""
    simulations = tmp_path / "sailor" / "Planner" / "simulations"
    simulations.mkdir(parents=True)
    layers = {str(index): [0.01, 0.02, 0.001] for index in range(3)}
    by_size = {"2": {"1": layers, "2": layers}}
    content = {"OPT-350": {"A100-40": by_size, "V100-16": by_size}, "unknown": {"A100-40": by_size}}
    (simulations / "profiles_tmp.json").write_text(json.dumps(content))
    size = {"params_floats": 10, "act_output_floats": 20, "act_mem_floats": 30}
    sizes = {"1": {str(index): size for index in range(3)}}
    (tmp_path / "sailor" / "Planner" / "llm_info.json").write_text(
        json.dumps(dict.fromkeys(content, sizes))
    )
    return tmp_path


def test_blocks_of_single_gpus_are_samples_and_those_of_groups_are_not(folder: Path) -> None:
    samples = list(sailor_samples(folder))
    assert [(sample.entry.name, sample.units) for sample in samples] == [
        ("A100-40G", "tf32"),
        ("V100-16G", "float32"),
    ]
    assert {sample.seconds for sample in samples} == {(0.01, 0.02)}
    assert len(published_samples(folder).samples) == len(samples)
    assert "eth-easl/sailor" in published_samples(folder).sources[0]


def test_a_file_without_its_sizes_is_one_clear_error(folder: Path) -> None:
    (folder / "sailor" / "Planner" / "llm_info.json").unlink()
    with pytest.raises(HeterpsError, match=r"but not sailor/Planner/llm_info\.json"):
        list(sailor_samples(folder))


def test_every_gpu_of_the_files_is_in_the_catalogue() -> None:
    assert all(device_type_named(name).power_w for name in GPUS.values())


def test_products_of_a_block_are_twelve_squares_and_two_of_activations() -> None:
    block = traced_megatron(SMALL).layers[1]
    hidden, tokens = SMALL.hidden_size, SMALL.sequence_length
    assert block.forward_flops == 24 * hidden**2 * tokens + 4 * tokens**2 * hidden
    assert block.num_parameters == 12 * hidden**2 + 13 * hidden


@pytest.mark.parametrize("degree", [2, 4])
def test_a_gpu_of_a_group_has_its_share_of_products_and_weights(degree: int) -> None:
    whole, part = (
        traced_megatron(SMALL._replace(tensor_parallel=each)).layers for each in (1, degree)
    )
    assert part[1].forward_flops == whole[1].forward_flops / degree
    assert part[2].forward_flops == pytest.approx(whole[2].forward_flops / degree, rel=0.05)
    assert part[1].num_parameters < whole[1].num_parameters / degree + 10 * SMALL.hidden_size


def test_dropout_of_attention_takes_memory_traffic() -> None:
    plain, dropping = (
        traced_megatron(SMALL._replace(dropout=share)).layers[1] for share in (0.0, 0.1)
    )
    assert dropping.memory_traffic_bytes > plain.memory_traffic_bytes
    assert dropping.forward_flops == plain.forward_flops


def test_sizes_are_those_that_the_models_are_named_for() -> None:
    billions = {
        name: (shape.vocabulary_size * shape.hidden_size + depth * 12 * shape.hidden_size**2) / 1e9
        for (name, shape), depth in zip(SHAPES.items(), (24, 32, 48), strict=True)
    }
    assert billions == pytest.approx({"OPT-350": 0.35, "GPT-Neo-2.7": 2.7, "OPT-30": 30}, rel=0.05)
