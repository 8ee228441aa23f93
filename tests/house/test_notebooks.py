"""Notebooks of the docs run from the first cell to the last, on a problem that is quick."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heterps_configs.documents.plan import Plan
from tests.house.documents import ROOT

NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    found = json.loads(path.read_text())["cells"]
    assert isinstance(found, list)
    return found


def code_of(path: Path) -> str:
    """All code cells as one program."""
    return "\n\n".join(
        "".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code"
    )


def on_a_smaller_problem(code: str) -> str:
    """The program with a model and a cluster that planning takes seconds for."""
    for name, smaller in {"llama-7b": "perceptron", "a100-v100-t4": "a100-v100"}.items():
        assert code.count(f'"{name}"') == 1
        code = code.replace(f'"{name}"', f'"{smaller}"')
    return code


def test_there_is_a_notebook() -> None:
    assert [path.name for path in NOTEBOOKS] == ["plan_and_compare.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    for cell in cells(path):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.slow
def test_planning_and_comparing_goes_through_and_keeps_the_plan(tmp_path: Path) -> None:
    (path,) = NOTEBOOKS
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", on_a_smaller_problem(code_of(path))],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    plan = Plan.from_file(tmp_path / "plan.yaml")
    assert (plan.model, plan.cluster) == ("perceptron", "a100-v100")
    assert "proven optimal as simulated: simulated" in done.stdout
    for planner in ("auto", "greedy", "even"):
        assert f"\n{planner} " in done.stdout
