"""What `heterps run` is asked for: files first, then what was typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.run_commands.run_request import (
    RUN_DIRECTORY,
    RunRequest,
    check_events,
    read_events,
    read_settings,
)
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import DocumentError, HeterpsError
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


def test_events_of_several_files_come_together(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("events: [{step: 1, lose: d0}]\n")
    (tmp_path / "b.yaml").write_text("events: [{step: 2, join: d0}]\n")
    files = [str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")]
    events, spot = read_events(files, RunSettings())
    assert events == (RunEvent(step=1, lose="d0"), RunEvent(step=2, join="d0"))
    assert spot is None


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


def test_events_of_unknown_devices_are_told_with_file_and_field(
    make_problem: MakeProblem, tmp_path: Path
) -> None:
    path = tmp_path / "events.yaml"
    path.write_text(
        "events: [{step: 1, lose: fast-0}, {step: 2, join: d9}, "
        "{step: 3, slow: fast-0->d8, factor: 2}]"
    )
    with pytest.raises(DocumentError) as caught:
        check_events([str(path), "spot.csv"], make_problem())
    first, second = caught.value.problems
    assert caught.value.source == str(path)
    assert first.startswith("events.1.join: no device 'd9' in the cluster")
    assert second.startswith("events.2.slow: no device 'd8' in the cluster")
