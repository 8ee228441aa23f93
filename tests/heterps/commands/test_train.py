"""`heterps train` for both kinds of problems: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps.commands.train import load_config, override, run_name
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.learned.policy import Policy
from heterps_configs.errors import HeterpsError

Heterps = Callable[..., Any]


# Fewer problems, for a run of a second.
SMALL = {
    "quick": ("budget_s=1", "pool_size=64", "imitation_passes=2", "curve_problems=0"),
    "graph-generalist": ("budget_s=1", "nodes=[8, 12]", "first_nodes=10", "polish_evaluations=50"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "kind", "score", "words"),
    [
        (
            "quick",
            Policy,
            "greedy_gap_median",
            "gap to the optimum on the held-out set: greedy median",
        ),
        (
            "graph-generalist",
            GraphPolicy,
            "samples16_mean",
            "step time on the held-out set, of that of earliest finish",
        ),
    ],
)
def test_a_config_of_either_kind_trains_and_leaves_its_policy(
    heterps: Heterps,
    tmp_path: Path,
    config: str,
    kind: type[Policy] | type[GraphPolicy],
    score: str,
    words: str,
) -> None:
    policy_file, run = tmp_path / "policy.npz", ("--run-directory", tmp_path / "run")
    small = [f"--set={text}" for text in (*SMALL[config], "evaluation_problems=4")]
    outcome = heterps("train", "--config", config, *small, *run, "-o", policy_file, "--json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert content["policy"] == str(policy_file)
    assert content["scores"][score] >= 0
    policy = kind.load(policy_file)
    assert policy.num_parameters > 0
    assert policy.meta["command"].startswith(f"heterps train --config {config} --set=budget_s=1 ")
    # Its budget is spent: what is left is to say so.
    outcome = heterps("train", "--config", config, *small, *run, "--resume")
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.out.split())
    assert words in said
    assert "policy: " in said


def test_a_run_is_named_by_its_config_and_what_differs_from_it() -> None:
    assert run_name("quick", []) == "quick"
    assert run_name("folder/own.yaml", ["seed=1", "hidden=32"]) == "own,hidden=32,seed=1"
    # More steps go on with the same run.
    assert run_name("quick", ["total_steps=9", "seed=1", "budget_s=60"]) == "quick,seed=1"
    assert "/" not in run_name("quick", ["description=a/b"])


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("budget_s=!!python/name:os.system", "could not determine a constructor for the tag"),
        ("pool_size=1e12", "pool_size: must be at most 1000000, got"),
        ("learning_rate=1e300", "learning_rate: must be at most 10, got"),
        ("layers=[0, 8]", "layers.0: must be greater than 0"),
    ],
)
def test_a_setting_that_no_training_has_is_refused(text: str, expected: str) -> None:
    with pytest.raises(HeterpsError, match=re.escape(expected)):
        override(load_config("quick"), [text])
