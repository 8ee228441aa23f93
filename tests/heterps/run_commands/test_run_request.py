"""What `heterps run` is asked for: files first, then what was typed."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from heterps.run_commands.run_request import (
    RUN_DIRECTORY,
    RunRequest,
    check_file,
    read_settings,
)
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.specification.hosts import Hosts
from tests.uneven_problems import MakeProblem

HOSTS = Hosts(2, 0, "127.0.0.1", 29400, b"a secret of sixteen bytes")
TORCH = RunSettings(engine="torch")


def test_without_a_file_all_is_usual() -> None:
    assert read_settings(None, {"steps": None}) == RunSettings(run_directory=RUN_DIRECTORY)


def test_what_is_typed_comes_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("steps: 7\nseed: 3\nverify: true\ncheckpoint: {folder: a, every: 2}\n")
    settings = read_settings(str(path), {"steps": 9, "seed": None, "checkpoint": Path("b")})
    assert (settings.steps, settings.seed, settings.verify) == (9, 3, True)
    assert settings.checkpoint == CheckpointSettings(folder="b", every=2)


def test_the_shipped_settings_are_the_usual_ones() -> None:
    settings = read_settings("run-settings", {})
    assert settings.changed(description="") == read_settings(None, {})


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (RunRequest(Path("p"), TORCH, trace=Path("t.png")), "--trace: not with engine torch"),
        (RunRequest(Path("p"), TORCH, hosts=HOSTS), "engine torch: not with --nodes"),
        (RunRequest(Path("p"), TORCH, is_elastic=True), "--elastic: not with engine torch"),
        (RunRequest(Path("p"), RunSettings(port=29401), hosts=HOSTS), "port: not with --nodes"),
        (RunRequest(Path("p"), RunSettings(resume=True)), "--resume: needs --checkpoint"),
    ],
)
def test_what_does_not_go_together_is_refused(request_: RunRequest, expected: str) -> None:
    with pytest.raises(HeterpsError, match=expected):
        request_.check()


def test_a_port_is_ignored_with_elastic() -> None:
    with pytest.warns(UserWarning, match="port is ignored with --elastic"):
        RunRequest(Path("p"), RunSettings(port=29401), is_elastic=True).check()


def test_hosts_compare_what_decides_the_result_by_the_name_that_a_user_knows() -> None:
    own = RunRequest(Path("p"), RunSettings(steps=3, run_directory="a", verify=True)).facts()
    other = RunRequest(Path("p"), RunSettings(steps=4, run_directory="b")).facts()
    assert {name for name in own if own[name] != other[name]} == {"--steps"}
    assert own["online.fine_tune_s"] == 15.0
    assert own["--checkpoint"] == ""


def test_settings_of_a_mode_that_is_off_are_named(make_problem: MakeProblem) -> None:
    settings = RunSettings.from_mapping(
        {
            "elastic": {"heartbeat_s": 3.0, "losses_per_hour": {"fsat": 1}},
            "online": {"drift_threshold": 0.2},
        }
    )
    with pytest.warns(UserWarning, match="are ignored") as told:
        RunRequest(Path("p"), settings).check()
    assert [str(each.message) for each in told] == [
        "settings that need --online are ignored: online.drift_threshold",
        "settings that need --elastic are ignored: elastic.heartbeat_s, elastic.losses_per_hour",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RunRequest(Path("p"), settings, is_online=True, is_elastic=True).check()
        RunRequest(Path("p"), settings).check_losses(make_problem())


def test_losses_of_what_the_cluster_lacks_are_named(make_problem: MakeProblem) -> None:
    rates = {"fast": 0.3, "middle-0": 1, "fsat": 1}
    settings = RunSettings.from_mapping({"elastic": {"losses_per_hour": rates}})
    with pytest.warns(UserWarning, match=r"elastic\.losses_per_hour: .* device types: fsat$"):
        RunRequest(Path("p"), settings, is_elastic=True).check_losses(make_problem())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("resume: true", "resume: needs checkpoint.folder, or --checkpoint FOLDER"),
        ("checkpoint: {every: 3}", "checkpoint.every 3: needs --checkpoint FOLDER"),
        ("program: ''", "program: needs at least 1 character"),
        ("program: foo", "program: 'foo' names no function"),
        ("program: /none/here.py:make", "program: /none/here.py cannot be read"),
        ("weights: ''", "weights: needs at least 1 character"),
        ("weights: /none/here", "weights: /none/here is no folder"),
    ],
)
def test_what_a_file_of_settings_names_wrongly_is_told_with_the_file(
    text: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(HeterpsError) as caught:
        read_settings(str(path), {})
    assert str(caught.value).startswith(f"{path}: {expected}")


def test_what_is_typed_beside_a_file_is_not_the_file_s(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("resume: true\nprogram: foo\n")
    typed = {"checkpoint": tmp_path, "program": "train.py:make"}
    assert read_settings(str(path), typed).program == "train.py:make"
    check_file("mine.yaml", RunSettings(resume=True, program="foo"), beside=("resume", "program"))
