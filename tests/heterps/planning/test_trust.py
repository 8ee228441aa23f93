"""Code that a document names: named, asked for once, and not touched before somebody says yes."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps.planning.problems import load_problem
from heterps.planning.trust import ask_for_trust, trust_file
from heterps.run_commands.from_python import run
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.library import load_profile
from heterps_runtime.models import trust
from heterps_runtime.models.build import build_module
from heterps_runtime.models.trust import UntrustedCodeError, check_trusted, code_of, is_shipped

Heterps = Callable[..., Any]
EVIL = """
from pathlib import Path
Path("ran").touch()

from heterps_runtime.examples.sequential import perceptron as build
"""
PROGRAM = """
from pathlib import Path
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from heterps import TrainingProgram
Path("ran").touch()

def make():
    return TrainingProgram(loss=cross_entropy, optimizer=lambda own: SGD(own, lr=0.1))
"""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with a stranger's module, with a configuration folder of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(trust, "_TRUSTED", set())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in sys.modules if name.startswith("evil")]:
        monkeypatch.delitem(sys.modules, name)
    Path("evilmod.py").write_text(EVIL)


def _source(factory: str = "evilmod:build") -> ModelSource:
    source = load_profile("perceptron").source
    assert source is not None
    return source.changed(factory=factory)


def _asked(answer: str, source: ModelSource | None = None) -> list[str]:
    """What was said and asked."""
    said: list[str] = []

    def ask(question: str) -> str:
        said.append(question)
        return answer

    ask_for_trust(
        source or _source(), "plan.yaml: this plan", is_trusted=False, say=said.append, ask=ask
    )
    return said


def _placed(heterps: Heterps) -> Any:
    """Writes a profile whose source is a stranger's code, and a plan for it."""
    load_profile("perceptron").changed(source=_source()).to_file("profile.yaml")
    where = ("-c", "local-emulated", "-p", "exact", "--global-batch", 8)
    return heterps("place", "profile.yaml", *where, "-o", "plan.yaml")


def test_a_strangers_plan_ends_with_one_line_before_anything_is_imported(
    heterps: Heterps, tmp_path: Path
) -> None:
    made = _placed(heterps)
    assert made.code == 0, made.err
    outcome = heterps("run", "plan.yaml", "--steps", 1)
    assert outcome.code == 2
    (line,) = outcome.err.strip().splitlines()
    assert "plan.yaml: this plan runs evilmod:build (" in line
    assert line.endswith("which is not trusted: --trust-code or trust_code=True runs it")
    measured = heterps("profile", "profile.yaml", "--device", "cpu")
    assert measured.code == 2
    assert "profile.yaml: this profile runs evilmod:build (" in measured.err
    assert not Path("ran").exists()
    assert "evilmod" not in sys.modules
    assert str(tmp_path) not in sys.path


@pytest.mark.slow
def test_trusted_code_runs_on_every_rank(heterps: Heterps, tmp_path: Path) -> None:
    _placed(heterps)
    outcome = heterps("run", "plan.yaml", "--steps", 1, "--trust-code")
    assert outcome.code == 0, outcome.err
    assert "this plan runs evilmod:build" in outcome.err.replace("\n", " ")
    assert Path("ran").exists()
    assert not trust_file().exists(), "an option is for one call"


def test_an_export_that_needs_the_modules_asks_as_a_run_does(heterps: Heterps) -> None:
    _placed(heterps)
    asked = ("export", "plan.yaml", "out", "--to", "accelerate")
    refused = heterps(*asked)
    assert refused.code == 2
    assert "plan.yaml: this plan runs evilmod:build (" in refused.err
    assert not Path("ran").exists()
    assert not Path("out").exists()
    assert heterps(*asked, "--trust-code").code == 0
    assert (Path("out") / "device_map.json").exists()


def test_from_python_a_plans_code_runs_where_the_caller_says_so(
    heterps: Heterps, monkeypatch: pytest.MonkeyPatch
) -> None:
    _placed(heterps)
    trusted: list[bool] = []

    def carried_out(*arguments: object, **options: object) -> None:
        trusted.append(trust.is_trusted("evilmod:build"))
        raise KeyboardInterrupt

    monkeypatch.setattr("heterps.run_commands.conduct.run_plan", carried_out)
    with pytest.raises(UntrustedCodeError, match="trust_code=True runs it"):
        run("plan.yaml")
    with pytest.raises(KeyboardInterrupt):
        run("plan.yaml", trust_code=True)
    assert trusted == [True]


@pytest.mark.slow
def test_a_program_of_a_file_is_asked_for_and_one_of_the_command_line_is_not(
    heterps: Heterps,
) -> None:
    Path("train.py").write_text(PROGRAM)
    Path("mine.yaml").write_text("program: train.py:make\n")
    heterps(
        "place",
        "perceptron",
        "-c",
        "local-emulated",
        "-p",
        "exact",
        "--global-batch",
        8,
        "-o",
        "plan.yaml",
    )
    refused = heterps("run", "plan.yaml", "--steps", 1, "--settings", "mine.yaml")
    assert refused.code == 2
    assert re.search(r"settings: this file runs .*train.py:make \(.*not trusted", refused.err)
    assert not Path("ran").exists()
    outcome = heterps(
        "run", "plan.yaml", "--steps", 3, "--program", "train.py:make", "--verify", "--json"
    )
    assert outcome.code == 0, outcome.err
    assert outcome.data["max_loss_difference"] < 1e-5
    assert Path("ran").exists()
    missing = heterps("run", "plan.yaml", "--steps", 1, "--program", "none.py:make")
    assert (missing.code, "none.py cannot be read" in missing.err) == (2, True)


def test_an_answer_holds_until_the_code_changes() -> None:
    first = _asked("y")
    assert "runs evilmod:build (" in first[0]
    assert len(first) == 2
    assert stat.S_IMODE(trust_file().stat().st_mode) == 0o600
    assert stat.S_IMODE(trust_file().parent.stat().st_mode) == 0o700
    check_trusted("evilmod:build")
    trust._TRUSTED.clear()
    (line,) = _asked("n")
    assert line.endswith(", which is trusted")
    trust._TRUSTED.clear()
    Path("evilmod.py").write_text(EVIL + "# more")
    with pytest.raises(UntrustedCodeError, match=r"was not run: evilmod:build is not trusted"):
        _asked("n")
    assert not Path("ran").exists()


def test_answers_that_others_could_have_written_do_not_count() -> None:
    _asked("y")
    trust._TRUSTED.clear()
    trust_file().chmod(0o666)
    with pytest.raises(UntrustedCodeError):
        _asked("")
    trust_file().chmod(0o600)
    trust_file().write_bytes(b"\x80\x04.")
    with pytest.raises(UntrustedCodeError):
        _asked("")


def test_a_fingerprint_covers_the_packages_that_hold_a_module() -> None:
    os.makedirs("evilpackage/inner")
    os.makedirs("evilfolder/inner")
    for name in ("__init__", "inner/__init__"):
        Path(f"evilpackage/{name}.py").write_text(EVIL)
    Path("evilfolder/inner/last.py").write_text(EVIL)
    assert code_of("evilfolder.inner.last:build").file.endswith("evilfolder/inner/last.py")
    before = code_of("evilpackage.inner:build")
    assert before.file.endswith("evilpackage/inner/__init__.py")
    Path("evilpackage/__init__.py").write_text(EVIL + "# more")
    assert code_of("evilpackage.inner:build").fingerprint != before.fingerprint
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("factory", "is_ours"),
    [
        ("heterps_runtime.examples.sequential:perceptron", True),
        ("heterps_runtime.examples.sequential:nn.os.abort", False),
        ("heterps_runtime.examples.:perceptron", False),
        ("heterps_runtime.state.checkpoint_files:drop_unfinished", False),
        ("os:abort", False),
    ],
)
def test_only_the_examples_are_never_asked_for(factory: str, is_ours: bool) -> None:
    assert is_shipped(factory) == is_ours
    if is_ours:
        assert _asked("n", _source(factory)) == []


def test_in_python_a_document_is_trusted_where_the_caller_says_so() -> None:
    load_profile("perceptron").changed(source=_source()).to_file("profile.yaml")
    load_problem("profile.yaml", "local-emulated", global_batch_size=8)
    with pytest.raises(UntrustedCodeError, match="names the code evilmod:build"):
        build_module(_source())
    load_problem("profile.yaml", "local-emulated", global_batch_size=8, trust_code=True)
    assert not Path("ran").exists()
    build_module(_source())
    assert Path("ran").exists()
