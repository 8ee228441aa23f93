"""Training programs that run: what somebody has agreed to, on every host, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.models.trust import UntrustedCodeError
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.specification.trust import agreed_program, check_sent
from heterps_runtime.training.program_file import ProgramFile, training_program
from tests.runtime.small_runs import chain_of, problem_of

CODE = "from heterps_runtime.training.program import TrainingProgram as make\n"


def _file(folder: Path, code: str = CODE) -> ProgramFile:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(code)
    return ProgramFile.of(f"{folder}/train.py:make")


def _specification(program: ProgramFile) -> RunSpecification:
    problem = problem_of("sequential")
    plan = chain_of(problem, 4)
    built = build_specification(
        problem, plan, build_schedule(problem, plan), RunSettings(), devices=plan.devices
    )
    return built.changed(program=program)


def test_a_host_runs_its_own_file_of_what_another_host_sends(tmp_path: Path) -> None:
    there = _file(tmp_path / "there", CODE + "# both")
    with pytest.raises(UntrustedCodeError, match=r"there/train.py:make, which is not trusted"):
        check_sent(_specification(there))
    here = _file(tmp_path / "here", CODE + "# both")
    here.agree()
    assert check_sent(_specification(there)).program == here


def test_a_file_that_has_changed_since_does_not_run(tmp_path: Path) -> None:
    program = _file(tmp_path, CODE + "# first")
    program.agree()
    (tmp_path / "train.py").write_text("raise AssertionError")
    with pytest.raises(HeterpsError, match="the file has changed since the run began"):
        training_program(program)


def test_a_program_of_settings_needs_consent(tmp_path: Path) -> None:
    program = _file(tmp_path, CODE + "# settings")
    settings = RunSettings(program=program.reference)
    with pytest.raises(UntrustedCodeError):
        agreed_program(settings, trust_code=False)
    assert agreed_program(settings, trust_code=True) == program
    assert agreed_program(settings, trust_code=False) == program, "in this process, from now on"
    assert agreed_program(RunSettings(), trust_code=False) is None


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("make = 3", "has no function make"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("def make(): return 3", "returned int, expected a heterps.TrainingProgram"),
        ("def make(): raise OSError('no disk')", "raised OSError: no disk"),
    ],
)
def test_a_file_without_a_program_is_one_clear_error(code: str, text: str, tmp_path: Path) -> None:
    program = _file(tmp_path, code)
    program.agree()
    with pytest.raises(HeterpsError, match=text):
        training_program(program)


def test_a_reference_that_names_nothing_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match=r"names no function; expected FILE.py:FUNCTION"):
        ProgramFile.of("train.py")
    with pytest.raises(HeterpsError, match=r"none.py cannot be read"):
        ProgramFile.of(f"{tmp_path}/none.py:make")
    with pytest.raises(HeterpsError, match="there is no module nowhere"):
        ProgramFile.of("nowhere.train:make")
