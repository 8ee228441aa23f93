"""`heterps train` for both kinds of problems: what it prints, writes and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.learned.policy import Policy

Heterps = Callable[..., Any]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "kind", "score"),
    [("quick", Policy, "greedy_gap_median"), ("graph-generalist", GraphPolicy, "samples16_mean")],
)
def test_a_config_of_either_kind_trains_and_leaves_its_policy(
    heterps: Heterps,
    tmp_path: Path,
    config: str,
    kind: type[Policy] | type[GraphPolicy],
    score: str,
) -> None:
    policy_file = tmp_path / "policy.npz"
    small = ("--set", "budget_s=3", "--set", "evaluation_problems=4")
    outcome = heterps(
        "train", "--config", config, *small, "--run-directory", tmp_path / "run",
        "-o", policy_file, "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert content["policy"] == str(policy_file)
    assert content["scores"][score] >= 0
    assert kind.load(policy_file).num_parameters > 0


@pytest.mark.parametrize("config", ["quick", "graph-generalist"])
def test_an_unknown_field_is_refused_before_anything_is_written(
    heterps: Heterps, tmp_path: Path, config: str
) -> None:
    outcome = heterps(
        "train", "--config", config, "--set", "budget=3", "--run-directory", tmp_path / "run"
    )
    assert outcome.code == 2
    assert "budget: unknown field" in outcome.err
    assert not (tmp_path / "run").exists()
