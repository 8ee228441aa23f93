"""Every room has a purpose, a front door and a size that one can look over; the docs show them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.house.documents import (
    FLOORS,
    FRONT_DOORS,
    OTHERS,
    ROOT,
    docstring,
    documents,
    doors,
    rooms,
)

MOST_FILES = 17
LONGEST_PURPOSE = 84
FOLDERS = sorted(file.parent for floor in FLOORS for file in (ROOT / floor).rglob("__init__.py"))
ROOMS = [room for floor in FLOORS for room in rooms(floor)]


def relative(folder: Path) -> str:
    return folder.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("folder", FOLDERS, ids=relative)
def test_every_folder_says_in_one_line_what_it_is_for(folder: Path) -> None:
    first, _, rest = docstring(folder).partition("\n")
    assert first.endswith(".")
    assert len(first) <= LONGEST_PURPOSE
    assert not rest.strip() or rest.startswith("\n")


@pytest.mark.parametrize("folder", ROOMS, ids=relative)
def test_the_front_doors_of_a_room_are_there(folder: Path) -> None:
    assert FRONT_DOORS.search(docstring(folder)), (
        "the docstring of __init__ lacks where a reader begins: Front door: `module.name`."
    )
    assert doors(folder)
    assert [door for door in doors(folder) if not names_something(folder, door)] == []


def names_something(folder: Path, door: str) -> bool:
    """Whether `module`, `module.name` or a whole path stands in a room."""
    parts = door.split(".")
    for floor in FLOORS:
        if Path(floor).name == parts[0]:
            folder = ROOT / Path(floor).parent
    for length in range(len(parts), 0, -1):
        path = folder.joinpath(*parts[:length])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            source = file.read_text()
            return all(re.search(rf"(?:def|class) {name}\b", source) for name in parts[length:])
    return False


@pytest.mark.parametrize("folder", FOLDERS, ids=relative)
def test_no_folder_holds_more_files_than_one_looks_over(folder: Path) -> None:
    files = [file.name for file in folder.glob("*.py") if file.name != "__init__.py"]
    assert len(files) <= MOST_FILES


def test_a_room_of_rooms_names_them_all() -> None:
    """`systems` holds a folder for each paper: its docstring names them."""
    for room in ROOMS:
        inner = {file.parent.name for file in room.glob("*/__init__.py")}
        assert {name for name in inner if name not in docstring(room).lower()} == set()


def test_every_folder_stands_in_the_tree_and_nothing_that_is_not_there() -> None:
    """Rooms stand there by themselves; folders of data and benchmarks by a line in `OTHERS`."""
    assert [path for path in OTHERS if not (ROOT / path).is_dir()] == []
    there = {
        relative(file.parent)
        for top in (*FLOORS, "benchmarks")
        for file in (ROOT / top).glob("*/*.*")
        if not (file.parent / "__init__.py").is_file() and file.parent.name != "__pycache__"
    }
    listed = {path for path in OTHERS if "/" in path and path.split("/")[0] in TOPS}
    assert there == listed, "add its line to OTHERS in tests/house/documents.py, and run that"


TOPS = {*(floor.split("/")[0] for floor in FLOORS), "benchmarks"}


@pytest.mark.parametrize("path", documents(), ids=relative)
def test_what_follows_from_the_code_is_current(path: Path) -> None:
    assert path.read_text() == documents()[path], "run: python -m tests.house.documents"
