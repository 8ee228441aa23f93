"""Files as those of rl-baselines3-zoo say what a training configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heterps_configs import library
from heterps_configs.documents.training import ChainTrainingConfig, GraphTrainingConfig
from heterps_configs.documents.yaml_files import to_yaml
from heterps_configs.errors import HeterpsError
from heterps_configs.hyperparameters import (
    AnyConfig,
    environment_of,
    fields_of,
    hyperparameters_of,
    read_hyperparameters,
)

STAGE = "heterps/StagePlacement-v0"


def shipped(name: str) -> AnyConfig:
    config = library.load("training", name)
    assert isinstance(config, ChainTrainingConfig | GraphTrainingConfig)
    return config


@pytest.mark.parametrize("name", library.shipped("training"))
def test_the_file_of_a_shipped_configuration_gives_it_again(name: str, tmp_path: Path) -> None:
    config, path = shipped(name), tmp_path / "zoo.yml"
    path.write_text(to_yaml(hyperparameters_of(config)))
    fields = read_hyperparameters(path, config)
    assert type(config).from_mapping({**config.to_mapping(), **fields}) == config


def test_the_names_are_those_of_stable_baselines3() -> None:
    entry = hyperparameters_of(shipped("generalist"))[STAGE]
    expected = {"n_envs": 256, "n_steps": 16, "batch_size": 1024, "n_epochs": 3, "gamma": 1.0}
    assert expected.items() <= entry.items()
    assert entry["policy_kwargs"] == {"hidden": 64}


def test_every_objective_has_the_entry_of_its_environment() -> None:
    assert environment_of(shipped("quick")) == STAGE
    assert environment_of(shipped("price-generalist")) == "heterps/PricedStagePlacement-v0"
    assert environment_of(shipped("graph-generalist")) == "heterps/GraphPlacement-v0"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"learning_rate": 0.01}, {"learning_rate": 0.01, "final_learning_rate": 0.01}),
        ({"learning_rate": "lin_0.01"}, {"learning_rate": 0.01, "final_learning_rate": 0.0}),
        ({"n_timesteps": 9, "ent_coef": 0.1}, {"total_steps": 9, "entropy_weight": 0.1}),
        ({"policy_kwargs": {"hidden": 8}, "gamma": 1}, {"hidden": 8}),
    ],
)
def test_arguments_become_fields(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert fields_of(given, shipped("quick"), "a file") == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gamma": 0.99}, "gamma: must be 1"),
        ({"n_stepps": 1}, "n_stepps: unknown hyper-parameter"),
        ({"objective": "price"}, "objective: unknown hyper-parameter"),
        ({"policy_kwargs": {"net_arch": [64]}}, "policy_kwargs.net_arch: unknown"),
        ({"policy_kwargs": "dict(hidden=8)"}, "policy_kwargs: expected a mapping"),
        ({"learning_rate": "lin_fast"}, "expected a number or lin_NUMBER"),
        (
            {"hidden": 8, "policy_kwargs": {"hidden": 16}},
            "hidden and policy_kwargs.hidden: are one",
        ),
        ({"n_steps": 8, "steps_per_update": 16}, "n_steps and steps_per_update: are one"),
    ],
)
def test_what_no_training_has_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HeterpsError, match=message):
        fields_of(given, shipped("quick"), "a file")


def test_a_file_without_the_environment_says_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "zoo.yml"
    path.write_text("heterps/StagePlacement-v1: {n_envs: 8}\n")
    with pytest.raises(HeterpsError, match="did you mean heterps/StagePlacement-v1"):
        read_hyperparameters(path, shipped("quick"))
    path.write_text("default: {n_envs: 8}\n")
    assert read_hyperparameters(path, shipped("quick")) == {"num_environments": 8}
