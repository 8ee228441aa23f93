"""`heterps compare -o FOLDER`: plans that open, figures, the table, and nothing by halves."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps.comparisons import folder as folder_module
from heterps.comparisons.folder import write_folder
from heterps.planning.compare import compare
from heterps.planning.comparison import Comparison
from heterps.planning.problems import load_problem
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster

Heterps = Callable[..., Any]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    problem = load_problem("perceptron", "local-emulated", global_batch_size=8)
    return compare(problem, ["greedy", "pipeedge", "piper"], evaluations=50)


@pytest.mark.slow
def test_each_row_says_its_plan_which_opens_to_the_step_time_of_the_table(
    heterps: Heterps, blocks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of files of one's own, wherever the folder is opened."""
    load_cluster("local-emulated").to_file(tmp_path / "mine.yaml")
    monkeypatch.chdir(tmp_path)
    outcome = heterps(
        "compare", blocks.name, "-c", "mine.yaml", "-p", "exact,greedy,sailor,piper",
        "--evaluations", 300, "--no-tensorboard", "-o", "out/plans", "--global-batch", 8,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    for name in ("exact", "greedy", "sailor"):
        (line,) = [text for text in outcome.out.splitlines() if text.split()[:1] == [name]][:1]
        assert line.split()[-1] == f"out/plans/{name}.yaml"
    lines = [" ".join(text.split()) for text in outcome.out.splitlines()]
    assert any(line.startswith("piper cannot place: needs equal devices; ") for line in lines)
    moved = tmp_path / "elsewhere"
    (tmp_path / "out" / "plans").rename(moved)
    monkeypatch.chdir("/")
    rows = {row["planner"]: row for row in json.loads((moved / "table.json").read_text())["rows"]}
    for name in ("exact", "greedy", "sailor"):
        simulated = heterps("simulate", moved / f"{name}.yaml", "--json").data
        assert simulated["step_time_s"] == pytest.approx(rows[name]["step_time_s"])
        assert (moved / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not (moved / "piper.yaml").exists()
    page = heterps("report", moved / "table.json", "-o", tmp_path / "page.html")
    assert page.code == 0, page.err


def test_the_table_is_written_as_json_csv_and_html(comparison: Comparison, tmp_path: Path) -> None:
    files = write_folder(comparison, tmp_path / "out")
    assert files == {
        name: str(tmp_path / "out" / f"{name}.yaml") for name in ("greedy", "pipeedge")
    }
    content = json.loads((tmp_path / "out" / "table.json").read_text())
    assert content["plan_files"] == {"greedy": "greedy.yaml", "pipeedge": "pipeedge.yaml"}
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        rows = {row["planner"]: row for row in csv.DictReader(file)}
    assert float(rows["greedy"]["step_time_s"]) == content["rows"][0]["step_time_s"]
    assert rows["piper"]["plan_file"] == ""
    assert rows["piper"]["reason"].startswith("needs equal devices")
    page = (tmp_path / "out" / "table.html").read_text()
    assert "pipeedge.yaml" in page
    assert "piper: cannot place: needs equal devices" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_shipped_names_stay_and_nothing_lies_beside_the_plans(
    comparison: Comparison, tmp_path: Path
) -> None:
    write_folder(comparison, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "greedy.yaml", "greedy.png", "pipeedge.yaml", "pipeedge.png",
        "table.json", "table.csv", "table.html",
    }  # fmt: skip


@pytest.mark.slow
def test_an_earlier_comparison_is_replaced_and_other_files_are_left_alone(
    comparison: Comparison, tmp_path: Path, heterps: Heterps
) -> None:
    target = tmp_path / "out"
    write_folder(comparison, target)
    (target / "greedy.png").unlink()
    write_folder(comparison, target)
    assert (target / "greedy.png").exists()
    (target / "thesis.tex").write_text("mine")
    with pytest.raises(HeterpsError, match=r"holds thesis\.tex, which no comparison wrote"):
        write_folder(comparison, target)
    # The command says so before it compares.
    outcome = heterps("compare", "gpt2", "-c", "a100-v100", "-o", target, "--no-tensorboard")
    assert outcome.code == 2
    assert "--output" in outcome.err
    assert (target / "thesis.tex").read_text() == "mine"


def test_a_comparison_that_cannot_be_written_leaves_the_earlier_one(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    write_folder(comparison, target)
    before = {path.name: path.read_bytes() for path in target.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "_write_tables", full)
    with pytest.raises(HeterpsError, match="cannot be written: No space left on device"):
        write_folder(comparison, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_a_table_calls_a_plan_is_no_reason_to_delete_it(
    comparison: Comparison, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    write_folder(comparison, folder)
    table = folder / "table.json"
    content = json.loads(table.read_text())
    (folder / "thesis.txt").write_text("x")
    table.write_text(json.dumps({**content, "plan_files": {"greedy": "thesis.txt"}}))
    with pytest.raises(HeterpsError, match="which no comparison wrote"):
        write_folder(comparison, folder)
    table.write_text("[" * 20_000)
    with pytest.raises(HeterpsError, match="which no comparison wrote"):
        write_folder(comparison, folder)
    assert (folder / "thesis.txt").read_text() == "x"
