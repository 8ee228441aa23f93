"""Outputs: what cannot be written is refused first, and names never lead out of a folder."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_configs.outputs import FIGURE_SUFFIXES, file_name_of, folder_lock, try_outputs


@contextmanager
def full_disk() -> Iterator[None]:
    """Files of this process cannot grow. Python ignores the signal: writing is an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_can_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    try_outputs({"-o": (tmp_path / "new.png", FIGURE_SUFFIXES), "--trace": (None, (".json",))})
    try_outputs(folders={"--logdir": tmp_path / "several" / "new" / "ones"})
    assert not list(tmp_path.iterdir())


def test_what_is_in_the_way_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "circle.png").symlink_to(tmp_path / "circle.png")
    for name, problem in {
        "a.foo": "allowed endings: .png, .svg, .pdf",
        "missing/a.png": "there is no folder",
        "file/a.png": "is no folder",
        "folder.png": "it is a folder",
        "pipe.png": "it is no regular file",
        "circle.png": "cannot be written",
    }.items():
        path = tmp_path / name
        with pytest.raises(HeterpsError, match=problem) as refused:
            try_outputs({"--figure": (path, FIGURE_SUFFIXES)})
        assert str(refused.value).startswith(f"--figure {path}: ")
    both = (tmp_path / "a.png", ())
    with pytest.raises(HeterpsError, match="--trace names the same file"):
        try_outputs({"--trace": both, "--figure": both})


def test_what_is_in_the_way_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below"):
        with pytest.raises(HeterpsError, match=r"--logdir .* is no folder"):
            try_outputs(folders={"--logdir": tmp_path / name})


def test_a_full_disk_is_found_before_the_work(tmp_path: Path) -> None:
    with full_disk():
        for problem in ({"files": {"-o": (tmp_path / "a", ())}}, {"folders": {"-o": tmp_path}}):
            with pytest.raises(HeterpsError, match="File too large"):
                try_outputs(**problem)
        with pytest.raises(HeterpsError, match="File too large"):
            write_text(tmp_path / "plan.yaml", "x" * 1000)
    assert not list(tmp_path.iterdir())


def test_only_regular_files_are_replaced_and_links_stay(tmp_path: Path) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    with pytest.raises(HeterpsError, match="no regular file"):
        write_text(pipe, "text")
    assert pipe.is_fifo()
    with pytest.raises(HeterpsError, match="no regular file"):
        write_text("/dev/null", "text")
    link.symlink_to(target)
    write_text(link, "text")
    assert (link.is_symlink(), target.read_text()) == (True, "text")


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", "../../../etc/x", "/etc/x", "a\\b", "a\nb\x1b[31m", "\0", "\ud800", "é" * 300,
     "x" * 5000, ".hidden", "~", "C:x"],
)  # fmt: skip
def test_a_name_becomes_one_file_in_its_folder(name: str, tmp_path: Path) -> None:
    path = tmp_path / file_name_of(name)
    path.write_text("")
    assert path.resolve().parent == tmp_path.resolve()
    assert path.name.isascii()
    assert path.name.isprintable()
    assert path.name[0] != "."


def test_usual_names_stay_and_different_names_stay_different() -> None:
    usual = ["gpt2", "a100-v100-t4", "Llama 3.1 (8B)", "qwen_0.5"]
    assert [file_name_of(name) for name in usual] == usual
    names = ["a/b", "a%2Fb", "a b", ".a", "%2Ea", "x" * 200, "x" * 201]
    assert len({file_name_of(name) for name in names}) == len(names)


def test_a_folder_is_held_until_its_process_ends(tmp_path: Path) -> None:
    code = (
        "import os; from pathlib import Path; from heterps_configs.outputs import folder_lock\n"
        f"with folder_lock(Path({str(tmp_path)!r})): print(os.getpid(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        pid = int(other.stdout.readline())
        with pytest.raises(HeterpsError, match=f"process {pid} .* uses this folder"):
            folder_lock(tmp_path).__enter__()
        other.kill()
    with folder_lock(tmp_path):
        pass


def test_no_output_takes_the_place_of_what_is_read(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine")
    (tmp_path / "link.yaml").symlink_to(mine)
    read = {"MODEL": "gpt2", "--cluster": str(tmp_path / "link.yaml"), "--job": None}
    with pytest.raises(HeterpsError, match="--cluster names the same file"):
        try_outputs({"--output": (mine, ())}, read=read)
    try_outputs({"--output": (tmp_path / "plan.yaml", ())}, read={**read, "MODEL": "a" * 5000})
