"""A run of either kind leaves all that it should, resumes exactly, and can be interrupted."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from heterps_agents.learned.policy import Policy
from heterps_agents.learned.policy_file import finite_or_none
from heterps_agents.training.graphs import GraphLearner
from heterps_agents.training.run import TrainingProgress, TrainingRun
from heterps_agents.training.train import train
from heterps_configs.errors import HeterpsError
from tests.agents.training.conftest import CHAINS, CONFIGS, GRAPHS, AnyConfig, Runs
from tests.configs.test_outputs import full_disk

CURVES: dict[str, dict[str, set[str]]] = {
    "chains": {
        "learning": {"train/reward", "train_ppo/entropy", "train_time/environment_share"},
        "imitation": {"train/imitation_loss"},
        "development": {"train/greedy_gap_median", "train/greedy_gap_p95", "train/beam16_gap_p95"},
        "development-longer": {"train/greedy_gap_median", "train_judged/greedy_solved"},
        "development-more-types": {"train/beam16_gap_median", "train_judged/beam16_gap_mean"},
    },
    "graphs": {
        "learning": {"train/reward", "train_ppo/entropy"},
        "held-out": {"train/samples16_mean", "train_judged/samples16_median"},
    },
}


def stopped(config: AnyConfig, folder: Path, steps: int) -> TrainingProgress:
    """Interrupts a run at its first update that has taken so many steps; where it stood."""
    seen: list[TrainingProgress] = []

    def stop(state: TrainingProgress) -> None:
        seen.append(state)
        if state.steps >= steps:
            raise KeyboardInterrupt

    result = train(config, folder, progress=stop)
    assert result.interrupted
    assert result.steps == seen[-1].steps
    return seen[-1]


def board_of(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


def finite_scores(scores: dict[str, float]) -> list[str]:
    return [name for name, value in scores.items() if np.isfinite(value)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", CURVES)
def test_a_run_leaves_policy_checkpoint_curves_and_scores(trained: Runs, kind: str) -> None:
    result, seen = trained[kind]
    folder, config = result.policy_file.parent, CONFIGS[kind]
    assert result.steps >= (config.total_steps or 0)
    assert not result.interrupted
    assert seen[-1].share == 1.0
    assert [state.steps for state in seen] == sorted(state.steps for state in seen)
    assert seen[-1].score >= 0
    meta = json.loads((folder / "result.json").read_text())
    assert meta["command"] == "heterps train x"
    assert meta["scores"] == finite_or_none(result.scores)
    assert meta["cpu_s"] >= meta["ppo_cpu_s"] > 0
    assert type(result.policy).load(result.policy_file).meta["config"] == config.to_mapping()
    assert type(config).from_file(folder / "config.yaml") == config
    assert (folder / "checkpoint.pt").is_file()
    boards = {path.name: board_of(path) for path in folder.iterdir() if path.is_dir()}
    assert boards.keys() == CURVES[kind].keys()
    curves = {name: set(board.Tags()["scalars"]) for name, board in boards.items()}
    for name, expected in CURVES[kind].items():
        assert expected <= curves[name]
    assert {"train_time/steps_per_second", "train_time/cpu_seconds"} <= curves["learning"]
    assert not {"train_time/fps", "train_time/time_elapsed"} & curves["learning"], "of one update"
    first = {tag for tags in curves.values() for tag in tags if tag.startswith("train/")}
    assert len(first) <= 8, "few charts come first"
    main = "held-out" if kind == "graphs" else "development"
    for name in finite_scores(result.scores):
        given, _, rest = name.rpartition("/")
        assert f"train_score/{rest}" in curves[given or main]
    row = boards[main].summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"against" in row
    assert main.encode() in row
    assert b"evaluation_every_s" not in row, "by what nothing is learned"
    board = boards["learning"]
    assert "custom_scalars__config__" in board.Tags()["tensors"]
    texts = [
        board.Tensors(f"train/{name}/text_summary")[0].tensor_proto.string_val[0].decode()
        for name in ("config", "command")
    ]
    assert texts[0] == f"```yaml\n{config.to_yaml()}```"
    assert texts[1] == f"seed {config.seed}; heterps train x"
    pictures = board.Images("train/episode")
    steps = [picture.step for picture in pictures]
    assert steps == sorted(set(steps))
    # Of the same problem before and after PPO.
    assert len(steps) >= 2
    assert steps[-1] == result.steps
    assert all(min(picture.width, picture.height) >= 400 for picture in pictures)


@pytest.mark.slow
def test_the_scores_are_those_of_the_objective(trained: Runs) -> None:
    chains, prices, graphs = (trained[kind].result.scores for kind in ("chains", "price", "graphs"))
    assert {
        "greedy_gap_median",
        "beam64_solved",
        "development-longer/beam16_gap_p95",
    } <= chains.keys()
    assert {"cheapest/fast_gap_median", "cheapest/normal_solved"} <= prices.keys()
    assert 0 < graphs["samples16_mean"] <= graphs["greedy_mean"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "knows"), [("chains", False), ("price", True), ("budget", True)])
def test_policies_for_prices_read_them(trained: Runs, kind: str, knows: bool) -> None:
    policy = trained[kind].result.policy
    assert isinstance(policy, Policy)
    assert policy.knows_prices == knows


@pytest.fixture
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of these runs are compared with those of runs that draw."""
    monkeypatch.setattr(TrainingRun, "_draw", lambda self, *_: None)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_drawn")
@pytest.mark.parametrize("kind", ["chains", "graphs"])
def test_equal_seeds_give_equal_policies(trained: Runs, tmp_path: Path, kind: str) -> None:
    again = train(CONFIGS[kind], tmp_path)
    for name, value in trained[kind].result.policy.weights.items():
        np.testing.assert_array_equal(again.policy.weights[name], value)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_drawn")
@pytest.mark.parametrize(
    ("kind", "steps"),
    # Of chains while the first run imitates, and later.
    [("chains", 0), ("chains", 128), ("price", 128), ("budget", 128), ("graphs", 150)],
)
def test_a_run_that_was_stopped_and_resumed_ends_with_the_weights_of_one_that_was_not(
    trained: Runs, tmp_path: Path, kind: str, steps: int
) -> None:
    first = stopped(CONFIGS[kind], tmp_path, steps)
    assert first.steps < (CONFIGS[kind].total_steps or 0)
    assert (first.steps == 0) == (first.passes == 1)
    np.random.seed(99)  # noqa: NPY002 (what else happens to the global numbers does not matter)
    torch.manual_seed(99)
    second = train(CONFIGS[kind], tmp_path, resume=True)
    assert not second.interrupted
    assert second.steps == trained[kind].result.steps
    for name, value in trained[kind].result.policy.weights.items():
        np.testing.assert_array_equal(second.policy.weights[name], value)


def test_an_interrupt_in_the_midst_of_an_update_leaves_the_last_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(GRAPHS, tmp_path, 1)
    saved = (tmp_path / "checkpoint.pt").read_bytes()
    learn = GraphLearner._learn

    def interrupted(*arguments: Any) -> None:
        learn(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(GraphLearner, "_learn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(GRAPHS, tmp_path, resume=True)
    assert (tmp_path / "checkpoint.pt").read_bytes() == saved


@pytest.mark.slow
def test_a_run_that_has_nothing_left_to_train_says_so(trained: Runs, tmp_path: Path) -> None:
    first = trained["chains"].result
    shutil.copytree(first.policy_file.parent, tmp_path, dirs_exist_ok=True)
    said = rf"nothing is left to train: {first.steps} steps in .* \(total_steps 1\)"
    with pytest.warns(UserWarning, match=said):
        again = train(CHAINS.changed(total_steps=1), tmp_path, resume=True)
    assert again.steps == first.steps


def test_a_longer_budget_continues_the_curve(trained: Runs, tmp_path: Path) -> None:
    first = trained["chains"].result
    shutil.copytree(first.policy_file.parent, tmp_path, dirs_exist_ok=True)
    second = train(CHAINS.changed(total_steps=512), tmp_path, resume=True)
    assert second.steps >= 512 > first.steps
    assert second.seconds > first.seconds
    for run, tag in (("learning", "train/reward"), ("development", "train/greedy_gap_median")):
        steps = [event.step for event in board_of(tmp_path / run).Scalars(tag)]
        assert steps == sorted(set(steps))
        assert steps[-1] == second.steps


def test_a_directory_with_another_run_is_refused(trained: Runs, tmp_path: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        "chains": {
            "hidden": 32,
            "pool_size": 25,
            "num_environments": 8,
            "devices_per_class": (1, 7),
        },
        "graphs": {"hidden": 32, "node_width": 4, "devices": (2, 5), "nodes": (8, 20), "seed": 7},
        "price": {"objective": "budget"},
    }
    for kind, fields in changes.items():
        config, folder = CONFIGS[kind], trained[kind].result.policy_file.parent
        with pytest.raises(HeterpsError, match="resume it or name another"):
            train(config, folder)
        with pytest.raises(HeterpsError, match=r"no checkpoint\.pt to resume from"):
            train(config, tmp_path, resume=True)
        for name, value in fields.items():
            old, new = (
                list(each) if isinstance(each, tuple) else each
                for each in (getattr(config, name), value)
            )
            message = f"was trained with {name} {old}, not {new}"
            with pytest.raises(HeterpsError, match=re.escape(message)):
                train(config.changed(**{name: value}), folder, resume=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("config", [CHAINS, GRAPHS])
def test_a_broken_checkpoint_is_refused(config: AnyConfig, tmp_path: Path) -> None:
    config.to_file(tmp_path / "config.yaml")
    (tmp_path / "checkpoint.pt").write_bytes(b"broken")
    with pytest.raises(HeterpsError, match="is not a checkpoint"):
        train(config, tmp_path, resume=True)
    torch.save({"steps": 3}, tmp_path / "checkpoint.pt")
    with pytest.raises(HeterpsError, match="another version of heterps"):
        train(config, tmp_path, resume=True)


def test_a_budget_that_ends_before_the_first_step_is_a_warning(tmp_path: Path) -> None:
    config = CHAINS.changed(total_steps=None, budget_s=1e-6)
    with pytest.warns(UserWarning, match=r"ended before the first step of training; 0 of 2 passes"):
        result = train(config, tmp_path / "run")
    assert result.steps == 0


def test_a_full_disk_does_not_end_a_training_run(tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.warns(UserWarning, match="cannot be written"):
        # From the first update on; once more changes nothing.
        result = train(
            GRAPHS, tmp_path / "run", progress=lambda state: stack.enter_context(full_disk())
        )
    assert result.steps >= 400
    assert "policy.npz: cannot be written" in result.unwritten
    result.policy.save(tmp_path / "elsewhere.npz")


@pytest.mark.slow
def test_all_kernels_are_loaded_before_the_budget_begins(tmp_path: Path) -> None:
    # In a process of its own: others have loaded them.
    code = f"""
import gc, pathlib
from numba.core.dispatcher import Dispatcher
from stable_baselines3.common.logger import Logger
from heterps_agents.boards.training import CHAIN_LAYOUT, TrainingBoards
from heterps_agents.training.chains import ChainLearner
from heterps_agents.training.clock import Clock
from heterps_agents.training.graphs import GraphLearner
from heterps_agents.training.run import TrainingRun, TrainingRun
from tests.agents.training.conftest import CONFIGS
def loaded():
    kernels = [entry for entry in gc.get_objects() if isinstance(entry, Dispatcher)]
    return {{(kernel.__name__, str(each)) for kernel in kernels for each in kernel.signatures}}
config = CONFIGS["chains"]
learner = ChainLearner(config, Clock(config), Logger(None, []), resumes=False)
folder = pathlib.Path({str(tmp_path)!r})
learner.picture = lambda: None  # drawn when the budget is over
run = TrainingRun(learner, folder, TrainingBoards(folder, CHAIN_LAYOUT))
before = loaded()
assert before
run.go(None)
print(loaded() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
