"""`heterps run` from folders of weights and from checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_runtime.models.build import build_module
from heterps_runtime.run.run_plan import run_plan
from tests.runtime.small_models import source_of

Heterps = Callable[..., Any]


@pytest.mark.slow
def test_a_folder_of_weights_is_placed_trained_saved_and_gone_on_from(
    heterps: Heterps, tmp_path: Path
) -> None:
    model, plan = tmp_path / "model", tmp_path / "plan.yaml"
    module: Any = build_module(source_of("gpt2"), device="cpu")
    module.save_pretrained(model, max_shard_size="20KB")
    placed = heterps(
        "place", model, "-c", "local-emulated", "--global-batch", 4, "--sequence-length", 8,
        "-o", plan,
    )  # fmt: skip
    assert placed.code == 0, placed.err
    options = ("--run-directory", tmp_path / "run", "--json")
    settings = tmp_path / "settings.yaml"
    settings.write_text("checkpoint: {every: 1, keep: 1}\n")
    saving = ("--checkpoint", tmp_path / "saved", "--settings", settings)
    from_weights = tmp_path / "from-weights.yaml"
    from_weights.write_text(f"weights: {model}\n{settings.read_text()}")
    starting = ("--checkpoint", tmp_path / "saved", "--settings", from_weights, "--verify")
    first = heterps("run", plan, "--steps", 2, *starting, *options)
    assert first.code == 0, first.err
    assert first.data["max_loss_difference"] < 1e-5
    assert first.data["checkpoint"] == str(tmp_path / "saved" / "step-000002")
    second = heterps("run", plan, "--steps", 3, "--resume", *saving, *options)
    assert second.code == 0, second.err
    assert second.data["first_step"] == 2
    assert len(second.data["losses"]) == 1
    again = heterps("run", plan, "--steps", 3, *saving, *options)
    assert again.code == 2
    assert "has checkpoints already" in again.err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--resume",), "--resume: needs --checkpoint"),
        (("--checkpoint", "s3://bucket/run"), "as checkpoint.remote in a settings file"),
        (("--settings", "every.yaml"), "checkpoint.every 3: needs --checkpoint"),
        (("--checkpoint", "nothing", "--resume"), "no complete checkpoint"),
        (("--settings", "weights.yaml"), "is no folder"),
        (("--settings", "nowhere.yaml"), "nowhere.yaml: no such file"),
    ],
)
def test_starts_from_nowhere_are_refused(
    heterps: Heterps,
    perceptron_plan: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("every.yaml").write_text("checkpoint: {every: 3}\n")
    Path("weights.yaml").write_text("weights: nothing\n")
    outcome = heterps("run", perceptron_plan, *arguments)
    assert outcome.code == 2
    assert expected in outcome.err


def test_a_last_checkpoint_that_cannot_be_written_leaves_the_result_and_fails(
    heterps: Heterps, perceptron_plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_room(*arguments: Any, **options: Any) -> Any:
        return run_plan(*arguments, **options).changed(checkpoint_error="the disk is full")

    monkeypatch.setattr("heterps.run_commands.conduct.run_plan", without_room)
    outcome = heterps("run", perceptron_plan, "--steps", 2, "--run-directory", tmp_path / "run")
    assert outcome.code == 2
    assert "loss    " in outcome.out
    assert outcome.err.endswith("error: the disk is full; the run itself is done\n")
