"""Every command tries its outputs before its work, and says in one line what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Heterps = Callable[..., Any]
# What is named would fail, or take minutes, if it were read before the outputs are tried.
FILES = [
    "place nosuchmodel -c nosuchcluster -o FILE.yaml",
    "place nosuchmodel -c nosuchcluster --frontier --figure FILE.png",
    "place-graph nosuchmodel -c nosuchcluster -o FILE.json",
    "simulate nosuchplan.yaml --figure FILE.png",
    "simulate nosuchplan.yaml --memory-figure FILE.svg",
    "simulate nosuchplan.yaml --trace FILE.json",
    "simulate nosuchplan.yaml --trace spot.csv --figure FILE.pdf",
    "run nosuchplan.yaml --trace FILE.png",
    "train --config generalist -o FILE.npz",
    "profile nosuchmodel --device cpu -o FILE.yaml",
    "profile --links -o FILE.yaml",
    "profile --merge a.yaml b.yaml -o FILE.yaml",
    "spot-trace nosuchcluster -o FILE.csv",
]
FOLDERS = [
    "compare nosuchmodel -c nosuchcluster --logdir FOLDER",
    "run nosuchplan.yaml --run-directory FOLDER",
    "run nosuchplan.yaml --tensorboard FOLDER",
    "run nosuchplan.yaml --checkpoint FOLDER",
    "train --config generalist --run-directory FOLDER",
    "demo --run-directory FOLDER",
    "copy a100-v100 FOLDER",
    "schema FOLDER",
]


@pytest.mark.parametrize("command", FILES)
def test_a_file_in_a_missing_folder_is_refused_first(
    command: str, heterps: Heterps, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    outcome = heterps(*command.replace("FILE", str(missing / "file")).split())
    assert outcome.code == 2
    assert f"there is no folder {missing}" in outcome.err
    assert outcome.err.count("\n") == 1
    assert not missing.exists()


@pytest.mark.parametrize("command", FOLDERS)
def test_a_file_in_the_way_of_a_folder_is_refused_first(
    command: str, heterps: Heterps, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    outcome = heterps(*command.replace("FOLDER", str(tmp_path / "file")).split())
    assert outcome.code == 2
    assert "is no folder" in outcome.err
    assert outcome.err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.slow
def test_a_comparison_stays_in_its_folder_whatever_a_cluster_is_called(
    heterps: Heterps, blocks: Path, tmp_path: Path
) -> None:
    heterps("copy", "a100-v100", tmp_path)
    cluster, boards = tmp_path / "a100-v100.yaml", tmp_path / "logs" / "boards"
    cluster.write_text(cluster.read_text().replace("name: a100-v100", "name: ../../../up", 1))
    outcome = heterps("compare", blocks, "-c", cluster, "-p", "even", "--logdir", boards)
    assert outcome.code == 0
    written = [path for path in tmp_path.rglob("*") if "tfevents" in path.name]
    assert written
    assert all(path.is_relative_to(boards) for path in written)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["logs"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("place", "gpt2", "-c", "a100-v100", "--seconds", "nan"),
        ("compare", "gpt2", "-c", "a100-v100", "--cpu-seconds", "inf"),
        ("place-graph", "ctr", "-c", "a100-v100", "--seconds", "nan"),
        ("demo", "--train-seconds", "inf"),
        ("spot-trace", "spot-two-regions", "--hours", "nan"),
    ],
)
def test_numbers_that_are_none_are_refused(arguments: tuple[str, ...], heterps: Heterps) -> None:
    outcome = heterps(*arguments)
    assert outcome.code == 2
    assert "expected a finite number" in outcome.err
