"""Metis-style profiles: both spellings, units, and errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.importers.metis import load_profile, load_profiles, to_model_profile


def write(folder: Path, gpu: str, degree: int, size: int, spelling: str, **changes: Any) -> Path:
    """One profile of two layers."""
    content = {
        "model": {
            "model_name": "net",
            "num_layers": 2,
            "parameters": {"parameters_per_layer_bytes": [400, 800]},
            **changes,
        },
        "execution_time": {"optimizer_time_ms": 4.0, "layer_compute_total_ms": [30.0, 60.0]},
        "execution_memory": {spelling: 3, "layer_memory_total_mb": [1, 2]},
    }
    path = folder / f"DeviceType.{gpu}_tp{degree}_bs{size}.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("spelling", ["total_memory", "total_memory_mb"])
def test_both_spellings_of_the_memory_are_read(tmp_path: Path, spelling: str) -> None:
    profile = load_profile(write(tmp_path, "A100_40", 2, 4, spelling))
    assert (profile.gpu, profile.tensor_parallel, profile.batch_size) == ("A100_40", 2, 4)
    assert profile.total_memory_bytes == 3 * 2**20
    assert profile.layer_s == pytest.approx((0.03, 0.06))
    assert profile.optimizer_s == pytest.approx(0.004)


def test_a_folder_becomes_a_model_profile_whose_sums_are_what_was_measured(tmp_path: Path) -> None:
    write(tmp_path, "fast", 1, 2, "total_memory")
    write(tmp_path, "slow", 1, 1, "total_memory")
    profile = to_model_profile(load_profiles(tmp_path), output_bytes=64)
    assert profile.num_parameters == 300
    assert [layer.output_bytes for layer in profile.layers] == [64, 0]
    assert profile.layers[0].activation_bytes == 2**20 - 4 * 400
    for found in profile.measurements:
        total = [a + b for a, b in zip(found.forward_s, found.backward_s, strict=True)]
        assert total == pytest.approx([0.03, 0.06])


def test_names_and_models_that_do_not_fit_are_errors(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match=r"no file DeviceType"):
        load_profiles(tmp_path)
    (tmp_path / "profile.json").write_text("{}")
    with pytest.raises(DocumentError, match="the name of the file must be DeviceType"):
        load_profile(tmp_path / "profile.json")
    write(tmp_path, "fast", 2, 1, "total_memory")
    with pytest.raises(HeterpsError, match="no profile with tensor-parallel degree 1"):
        to_model_profile(load_profiles(tmp_path), output_bytes=0)
    write(tmp_path, "slow", 1, 1, "total_memory", model_name="other")
    with pytest.raises(DocumentError, match=r"DeviceType\.slow.*other of 2 layers, but"):
        load_profiles(tmp_path)


def test_a_list_of_another_length_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "fast", 1, 1, "total_memory", num_layers=3)
    with pytest.raises(DocumentError, match="layer_compute_total_ms: must have 3 values, got 2"):
        load_profile(path)
