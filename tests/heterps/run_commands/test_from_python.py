"""`heterps.run`: a user's script that trains as the command does, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import heterps
from heterps import HeterpsError, TrainingProgram
from heterps.run_commands.from_python import reference_of
from heterps_configs.errors import DocumentError
from heterps_runtime.run.launcher import LAUNCHER_VARIABLE

SCRIPT = """
import json
import time

import torch
from torch import nn

import heterps


class Points:
    def __init__(self):
        self.x = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        time.sleep(5e-3)  # The new plan comes while there are steps left, on a busy machine too.
        return self.x[index], (self.x[index, 0] > 0).long()


def build():
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 24), nn.Linear(24, 2))


def make():
    return heterps.TrainingProgram(
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        data=Points(),
    )


if __name__ == "__main__":
    problem = heterps.load_problem(
        "points:build", "local-emulated", inputs=["x=8:float32"], trust_code=True,
        global_batch_size=16, micro_batch_size=4,
    )
    found = heterps.place(problem, "greedy")
    with open("events.yaml", "w") as file:
        json.dump({"events": [{"step": 4, "lose": found.plan.devices[-1]}]}, file)
    usual = heterps.run(found, make, {"steps": 60, "run_directory": "usual"})
    shrunk = heterps.run(
        found, make, {"steps": 60, "run_directory": "shrunk", "checkpoint": {"folder": "saved"}},
        elastic=True, events=["events.yaml"], tensorboard="board", trace="trace.json",
    )
    print(json.dumps([usual.losses, shrunk.losses, len(shrunk.recoveries), shrunk.checkpoint]))
"""


@pytest.mark.slow
def test_a_script_trains_the_same_where_a_device_is_lost(tmp_path: Path) -> None:
    (tmp_path / "points.py").write_text(SCRIPT)
    folders = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "points.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)}, timeout=240,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    usual, shrunk, num_recoveries, checkpoint = json.loads(ended.stdout.splitlines()[-1])
    assert shrunk == pytest.approx(usual, abs=1e-5)
    assert usual[-1] < usual[0]
    assert num_recoveries == 1
    assert (tmp_path / checkpoint).is_dir()
    assert (tmp_path / "trace.json").stat().st_size > 0
    assert list((tmp_path / "board").glob("**/events*"))


def make() -> TrainingProgram:
    """At the top of a file."""
    return TrainingProgram()


def test_a_function_at_the_top_of_a_file_is_found_by_its_name() -> None:
    assert reference_of(make) == f"{Path(__file__)}:make"


def test_a_function_that_other_processes_do_not_find_is_refused() -> None:
    def inner() -> TrainingProgram:
        return TrainingProgram()

    with pytest.raises(HeterpsError, match=r"inner is no function at the top of test_from_python"):
        heterps.run("plan.yaml", inner)
    namespace: dict[str, object] = {"__name__": "a_notebook"}
    exec("def make(): ...", namespace)
    with pytest.raises(HeterpsError, match="make is in no file"):
        heterps.run("plan.yaml", namespace["make"])  # type: ignore[arg-type]


def test_settings_and_plan_are_checked_as_those_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"settings of heterps\.run: .*stepps"):
        heterps.run("plan.yaml", make, {"stepps": 3})
    missing = str(tmp_path / "plan.yaml")
    with pytest.raises(HeterpsError, match=r"plan\.yaml"):
        heterps.run(missing, make, {"run_directory": str(tmp_path / "run")})


def test_a_script_without_a_guard_is_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LAUNCHER_VARIABLE, "1")
    with pytest.raises(HeterpsError, match='below `if __name__ == "__main__":`'):
        heterps.run("plan.yaml", make)
