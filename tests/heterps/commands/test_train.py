"""`heterps train` for both kinds of problems: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps.commands.train import load_config, override, run_name
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.learned.policy import Policy
from heterps_configs.documents.training import ChainTrainingConfig
from heterps_configs.errors import HeterpsError
from heterps_configs.outputs import folder_lock

Heterps = Callable[..., Any]


# Fewer problems, for a run of a second.
SMALL = {
    "quick": ("budget_s=.3", "pool_size=64", "imitation_passes=2", "curve_problems=0"),
    "graph-generalist": ("budget_s=.3", "nodes=[8, 12]", "first_nodes=10", "polish_evaluations=50"),
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
    assert policy.meta["command"].startswith(f"heterps train --config {config} --set=budget_s=.3 ")
    # Its budget is spent: what is left is to say so.
    outcome = heterps("train", "--config", config, *small, *run, "--resume")
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.out.split())
    assert words in said
    assert "policy: " in said


TINY = (
    *("total_steps=64", "pool_size=16", "num_environments=8", "steps_per_update=4", "hidden=8"),
    *("layers=[5, 6]", "classes=[2, 2]", "curve_problems=0", "evaluation_problems=2"),
    *("imitation_passes=3", "imitation_problems=16", "imitation_refreshed=0"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "steps", "passes", "words"),
    [
        ("ppo", 64, 0, "64 environment steps"),
        ("imitation", 0, 3, "3 passes of imitation"),
        ("expert-iteration", 0, 3, "3 passes of imitation"),
    ],
)
def test_each_algorithm_does_its_part_alone(
    heterps: Heterps, tmp_path: Path, algorithm: str, steps: int, passes: int, words: str
) -> None:
    settings = TINY if algorithm != "ppo" else [t for t in TINY if "imitation_p" not in t]
    # With so little time the exact solver proves nothing, and the search has something to do.
    small = [f"--set={text}" for text in (*settings, "longest_exact_s=1e-9")]
    run = ("--algorithm", algorithm, "--run-directory", tmp_path)
    outcome = heterps("train", *run, *small, "--json")
    assert outcome.code == 0, outcome.err
    content = json.loads(outcome.out)
    assert (content["steps"], content["passes"]) == (steps, passes)
    outcome = heterps("train", *run, *small, "--resume")
    assert outcome.code == 0, outcome.err
    assert words in " ".join(outcome.out.split())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_training_saves_and_says_once_how_to_go_on(
    heterps: Heterps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    def interrupted(*arguments: object) -> str:
        signal.raise_signal(number)
        return ""

    small = [f"--set={text}" for text in TINY]
    with monkeypatch.context() as patch:
        patch.setattr("heterps.commands.train._now", interrupted)
        outcome = heterps("train", *small, "--run-directory", tmp_path)
    assert outcome.code == code
    assert "--resume" not in outcome.out
    assert "interrupted, and saved; now the policy is scored" in outcome.err
    assert outcome.err.endswith("\ninterrupted; the same command with --resume goes on\n")
    assert outcome.err.count("--resume") == 1
    outcome = heterps("train", *small, "--run-directory", tmp_path, "--resume")
    assert outcome.code == 0, outcome.err
    assert "64 environment steps" in outcome.out


def test_an_interrupt_before_the_first_update_says_that_nothing_was_saved(
    heterps: Heterps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "heterps_agents.training.train.train",
        lambda *_: signal.raise_signal(signal.SIGTERM),
    )
    outcome = heterps("train", "--run-directory", tmp_path)
    assert outcome.code == 143
    assert outcome.err.endswith("interrupted; nothing was saved\n")


def test_an_algorithm_is_known_and_for_chains(heterps: Heterps) -> None:
    outcome = heterps("train", "--algorithm", "imitate")
    assert outcome.code == 2
    assert "did you mean imitation" in outcome.err
    outcome = heterps("train", "--config", "graph-generalist", "--algorithm", "ppo")
    assert outcome.code == 2
    assert "chooses for chains" in outcome.err
    outcome = heterps("train", "--algorithm", "imitation", "--set", "imitation_passes=0")
    assert outcome.code == 2
    assert "the algorithm imitation needs at least 1, got 0" in outcome.err
    outcome = heterps("train", "--algorithm", "ppo", "--set", "imitation_passes=6")
    assert outcome.code == 2
    assert "--algorithm ppo: is PPO alone, and imitation_passes is 6" in outcome.err


def test_a_folder_in_which_another_run_trains_is_called_in_use(
    heterps: Heterps, tmp_path: Path
) -> None:
    with folder_lock(tmp_path):
        for options in ((), ("--resume",)):
            outcome = heterps("train", "--run-directory", tmp_path, *options)
            assert outcome.code == 2
            assert "uses this folder now" in outcome.err


def test_without_a_terminal_a_training_prints_a_line_now_and_then(
    heterps: Heterps, tmp_path: Path
) -> None:
    small = [f"--set={text}" for text in TINY]
    outcome = heterps("train", *small, "--run-directory", tmp_path)
    assert outcome.code == 0, outcome.err
    assert "train: 100 %" in outcome.err
    outcome = heterps("train", *small, "--json", "--run-directory", tmp_path / "other")
    assert "train: " not in outcome.err


def test_a_run_that_cannot_go_on_is_refused_in_one_line(heterps: Heterps, tmp_path: Path) -> None:
    outcome = heterps("train", "--run-directory", tmp_path, "--resume")
    assert outcome.code == 2
    (line,) = outcome.err.strip().splitlines()
    assert "no checkpoint.pt to resume from" in line


@pytest.mark.slow
def test_settings_that_change_when_a_run_goes_on_are_told(heterps: Heterps, tmp_path: Path) -> None:
    small = [f"--set={text}" for text in TINY]
    assert heterps("train", *small, "--run-directory", tmp_path).code == 0
    others = ("--set=minibatch_size=7", "--set=total_steps=96", "--resume")
    with pytest.warns(UserWarning, match="other settings.*minibatch_size 7 instead") as told:
        outcome = heterps("train", *small, *others, "--run-directory", tmp_path)
    assert outcome.code == 0, outcome.err
    assert sum("other settings" in str(each.message) for each in told) == 1


@pytest.mark.slow
def test_a_policy_that_could_not_be_written_is_not_said_to_be_there(
    heterps: Heterps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise HeterpsError("policy.npz: cannot be written: File too large")

    monkeypatch.setattr(Policy, "save", full)
    small = [f"--set={text}" for text in TINY]
    outcome = heterps("train", *small, "--run-directory", tmp_path, "-o", tmp_path / "p.npz")
    assert outcome.code == 2
    assert "policy: " not in outcome.out
    assert "64 environment steps" in outcome.out


def test_a_file_of_hyperparameters_trains_as_it_says(heterps: Heterps, tmp_path: Path) -> None:
    shown = heterps("train", "--show-hyperparameters", *(f"--set={text}" for text in TINY))
    assert shown.code == 0, shown.err
    file, run = tmp_path / "mine.yml", tmp_path / "run"
    file.write_text(shown.out.replace("n_steps: 4", "n_steps: 2"))
    more = ("--hyperparameters", file, "--set=n_epochs=1")
    assert heterps("train", *more).code == 2  # fields of the config go by their own names
    outcome = heterps("train", "--hyperparameters", file, "--set=epochs=1", "--run-directory", run)
    assert outcome.code == 0, outcome.err
    trained = ChainTrainingConfig.from_file(run / "config.yaml")
    assert (trained.steps_per_update, trained.epochs, trained.pool_size) == (2, 1, 16)


def test_a_wrong_value_of_such_a_file_is_named_as_it_stands_there(
    heterps: Heterps, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("default: {n_envs: many}")
    outcome = heterps("train", "--hyperparameters", file)
    assert outcome.code == 2
    said = f"with {file}: n_envs (num_environments): must be a whole number, got 'many'"
    assert said in outcome.err


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
        # 256 episodes of 16 steps: advantages of a single decision would make all weights nan.
        ("minibatch_size=1", "minibatch_size: of the 4096 decisions of an update"),
        ("minibatch_size=4095", "the last mini-batch of 4095 would have one"),
    ],
)
def test_a_setting_that_no_training_has_is_refused(text: str, expected: str) -> None:
    with pytest.raises(HeterpsError, match=re.escape(expected)):
        override(load_config("quick"), [text])
