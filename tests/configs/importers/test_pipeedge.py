"""PipeEdge's importer: units, repeating blocks, unused types, and errors that name the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_configs.errors import DocumentError, HeterpsError, UnknownNameError
from heterps_configs.importers.pipeedge import PipeEdgeProblem, load_problem


def load(tmp_path: Path, **changes: Any) -> PipeEdgeProblem:
    """A problem of four layers; `changes` replace whole files."""
    model = {"layers": 4, "mem_MB": [1, 2], "parameters_in": 7, "parameters_out": [5, 6]}
    profile = [{"batch_size": 8, "dtype": "torch.float32", "time_s": [1, 2, 3, 4]}]
    known = {"bw_Mbps": 8, "mem_MB": 3, "model_profiles": {"net": profile}}
    contents = {
        "models": {"net": model},
        "types": {"slow": known, "idle": {"bw_Mbps": 0, "mem_MB": 0, "model_profiles": None}},
        "devices": {"slow": ["a", "b"], "idle": []},
        **changes,
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(content))
    return load_problem(
        tmp_path / "models.yml", tmp_path / "types.yml", tmp_path / "devices.yml", "net"
    )


def test_megabytes_and_megabits_are_powers_of_two_and_blocks_repeat(tmp_path: Path) -> None:
    problem = load(tmp_path)
    (slow,) = problem.device_types
    assert problem.model.memory_bytes == (2**20, 2**21, 2**20, 2**21)
    assert problem.model.output_elements == (5, 6, 5, 6)
    assert (slow.bandwidth_bytes_per_s, slow.memory_bytes) == (2**20, 3 * 2**20)
    assert (slow.hosts, slow.seconds) == (("a", "b"), (1, 2, 3, 4))


def test_hosts_of_a_type_without_a_profile_are_left_out(tmp_path: Path) -> None:
    other = {"bw_Mbps": 8, "mem_MB": 3, "model_profiles": {}}
    with pytest.raises(HeterpsError, match="no device has a profile of net with batch size 8"):
        load(tmp_path, types={"slow": other}, devices={"slow": ["a"]})


def test_hosts_of_an_unknown_type_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"fast: hosts of a type that .*types\.yml"):
        load(tmp_path, devices={"fast": ["a"]})


def test_an_unknown_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown model 'net'; did you mean nets"):
        load(tmp_path, models={"nets": {}})


def test_lists_that_do_not_repeat_over_the_layers_are_an_error(tmp_path: Path) -> None:
    model = {"layers": 4, "mem_MB": [1, 2, 3], "parameters_in": 7, "parameters_out": [5]}
    with pytest.raises(DocumentError, match=r"net\.mem_MB: 3 values do not repeat over 4 layers"):
        load(tmp_path, models={"net": model})


def test_a_profile_of_another_length_is_an_error(tmp_path: Path) -> None:
    profile = [{"batch_size": 8, "dtype": "torch.float32", "time_s": [1, 2]}]
    types = {"slow": {"bw_Mbps": 8, "mem_MB": 3, "model_profiles": {"net": profile}}}
    with pytest.raises(DocumentError, match=r"net\.0\.time_s: must have 4 values, got 2"):
        load(tmp_path, types=types, devices={"slow": ["a"]})
