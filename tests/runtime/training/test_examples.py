"""The programs that come with heterps run as their pages say, and learn."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_profile
from heterps_runtime.examples import click_log, image_folder, text_llama
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.models.trust import is_shipped
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.training.batches import Needs, ReadBatches
from heterps_runtime.training.prepared import batches_of
from tests.runtime.small_runs import chain_of, problem_of

PLACES = "heterps_runtime.examples."


@pytest.mark.slow
def test_clicks_of_a_generated_log_are_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "clicks.csv"
    click_log.generate(str(path))
    monkeypatch.setenv("CLICKS", str(path))
    problem = problem_of("ctr", global_batch_size=64, micro_batch_size=32)
    settings = RunSettings(steps=100, program=f"{PLACES}click_log:make")
    result = run_plan(problem, chain_of(problem, 20), settings)
    losses = list(result.losses)
    assert sum(losses[-20:]) < 0.9 * sum(losses[:20])
    assert result.evaluations[-1].figures["accuracy"] > 0.6


def test_a_log_that_is_not_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICKS", "nowhere.csv")
    with pytest.raises(HeterpsError, match=r"nowhere.csv; python -m .* generates one"):
        click_log.make()


def test_the_text_is_what_the_shipped_llama_takes(tmp_path: Path) -> None:
    program, source = text_llama.make(), load_profile("llama-tiny").source
    assert source is not None
    job = problem_of("sequential").job
    batches = batches_of(program, source, job, seed=0)
    assert isinstance(batches, ReadBatches)
    inputs, target = batches.read(0, Needs.all_of([0])).batches[0]
    assert inputs["input_ids"].shape == target.shape == (job.micro_batch_size, text_llama.TOKENS)
    assert (inputs["input_ids"][:, 1:] == target[:, :-1]).all(), "the target is the next byte"
    assert len(program.data) > 10 * len(program.evaluation_data) > 0
    assert text_llama.rate(0) < text_llama.rate(text_llama.WARM_UP_STEPS) == 1.0


def test_the_text_that_ships_is_some_hundred_kilobytes_of_plays() -> None:
    text = bytes(text_llama.text_bytes().to(torch.uint8).tolist()).decode("ascii")
    assert 300_000 < len(text) < text_llama.MOST_BYTES
    assert "To be, or not to be,--that is the question:" in text


@pytest.mark.parametrize(("content", "what"), [(None, "No such file"), (b"short", "5 bytes")])
def test_a_text_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, what: str
) -> None:
    path = tmp_path / "own.txt"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("TEXT", str(path))
    with pytest.raises(HeterpsError, match=rf"TEXT: .*own\.txt .*{what}"):
        text_llama.make()


def test_pictures_are_what_their_transformer_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_folder, "PICTURES_OF_A_CLASS", 30)
    image_folder.generate(str(tmp_path))
    monkeypatch.setenv("PICTURES", str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    program, source = image_folder.make(), huggingface_source(config)
    assert (len(program.data), len(program.evaluation_data)) == (4 * 5, 4 * 25)
    batches = batches_of(program, source, problem_of("sequential").job, seed=0)
    assert isinstance(batches, ReadBatches)
    inputs, target = batches.read(0, Needs.all_of([0])).batches[0]
    assert inputs["pixel_values"].shape[1:] == (3, image_folder.SIZE, image_folder.SIZE)
    assert inputs["pixel_values"].abs().max() <= 1
    assert set(target.tolist()) <= set(range(4))


def test_a_folder_without_pictures_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICTURES", str(tmp_path))
    with pytest.raises(HeterpsError, match=r"cross has too few PNG files; .* generates them"):
        image_folder.make()


def test_they_need_no_trust() -> None:
    assert is_shipped(f"{PLACES}text_llama:make")
    assert is_shipped(f"{PLACES}image_folder:make")
    assert is_shipped(f"{PLACES}click_log:make")


@pytest.mark.parametrize(
    ("line", "count", "message"),
    [
        ("1,2,3", 2, "has 2 lines of 3 numbers; more than 1000 lines of 40 are needed"),
        (",".join(["1"] * 40), 1000, "has 1000 lines of 40 numbers"),
        ("a,b", 1, "could not convert string 'a'"),
        (",".join(["1000"] * 40), 1001, "the first 26 numbers, must be 0 to 999"),
    ],
)
def test_a_log_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, count: int, message: str
) -> None:
    log = tmp_path / "clicks.csv"
    log.write_text(f"{line}\n" * count)
    monkeypatch.setenv("CLICKS", str(log))
    with pytest.raises(HeterpsError, match=re.escape(message)):
        click_log.make()


@pytest.mark.parametrize(
    ("name", "needed", "start"),
    [
        ("click_log", "FILE", "python -m heterps_runtime.examples.click_log clicks.csv"),
        ("image_folder", "FOLDER", "python -m heterps_runtime.examples.image_folder pictures"),
        ("finetune_llama", "PLAN", "finetune_llama PLAN [STEPS] [WEIGHTS]"),
        ("train_click_through", "PLAN", "train_click_through PLAN [STEPS]"),
    ],
)
def test_an_example_without_arguments_says_in_one_line_what_it_needs(
    name: str,
    needed: str,
    start: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _code_of(name, [], monkeypatch) == 2
    said = capsys.readouterr().err
    assert said.splitlines() == [said.strip()]
    assert said.startswith(f"error: the following arguments are required: {needed}; usage: ")
    assert start in said


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["plan.yaml", "0"], "STEPS: '0' is no whole number above 0; usage: "),
        (["plan.yaml", "many"], "STEPS: 'many' is no whole number above 0; usage: "),
        (["nowhere.yaml", "5"], "nowhere.yaml: cannot be read: No such file or directory"),
    ],
)
def test_an_example_that_cannot_start_says_why_in_one_line(
    arguments: list[str],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _code_of("train_click_through", arguments, monkeypatch) == 2
    said = capsys.readouterr().err
    assert said.splitlines() == [said.strip()]
    assert said.startswith("error: ")
    assert what in said


def _code_of(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Of an example that ends before it has done anything."""
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    # Other tests have imported some of them.
    monkeypatch.delitem(sys.modules, f"{PLACES}{name}", raising=False)
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"{PLACES}{name}", run_name="__main__")
    return end.value.code
