"""Every room has a purpose, a door and a size one can look over; the README's tree names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOORS = (
    "heterps",
    "runtime/heterps_runtime",
    "agents/heterps_agents",
    "envs/heterps_envs",
    "configs/heterps_configs",
)
MOST_FILES = 17
LONGEST_PURPOSE = 84


def packages(floor: str) -> list[Path]:
    """All folders of a floor that hold code, the floor itself first."""
    return sorted(file.parent for file in (ROOT / floor).rglob("__init__.py"))


def docstring(folder: Path) -> str:
    return ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""


def tree_of_readme() -> dict[str, str]:
    """What the README's tree lists: path -> purpose, two levels deep."""
    tree = (ROOT / "README.md").read_text().split("## The tree")[1].split("```")[1]
    listed, top = {}, ""
    for line in filter(str.strip, tree.splitlines()):
        name, _, purpose = line.strip().partition(" ")
        top = top if line.startswith(" ") else name
        listed[top + name if line.startswith(" ") else name] = purpose.strip()
    return listed


ALL_PACKAGES = [folder for floor in FLOORS for folder in packages(floor)]
ROOMS = [folder for floor in FLOORS for folder in packages(floor) if folder.parent == ROOT / floor]


def relative(folder: Path) -> str:
    return folder.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("folder", ALL_PACKAGES, ids=relative)
def test_every_folder_says_in_one_line_what_it_is_for(folder: Path) -> None:
    first, _, rest = docstring(folder).partition("\n")
    assert first.endswith(".")
    assert len(first) <= LONGEST_PURPOSE
    assert not rest.strip() or rest.startswith("\n")


@pytest.mark.parametrize("folder", ROOMS, ids=relative)
def test_the_front_doors_of_a_room_are_there(folder: Path) -> None:
    found = re.search(r"Front doors?:\s(.+?)(?:\.\s|\.?\Z)", docstring(folder), re.DOTALL)
    assert found, (
        "say in the docstring of __init__ where a reader begins: Front door: `module.name`"
    )
    doors = re.findall(r"`([\w.]+)`", found[1])
    missing = [door for door in doors if not names_something(folder, door)]
    assert not missing


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
            return all(re.search(rf"\b{name}\b", file.read_text()) for name in parts[length:])
    return False


@pytest.mark.parametrize("folder", ROOMS, ids=relative)
def test_every_room_stands_in_the_readme_with_its_purpose(folder: Path) -> None:
    purpose = docstring(folder).partition("\n")[0].removesuffix(".")
    assert tree_of_readme().get(f"{relative(folder)}/") == purpose


def test_every_folder_of_benchmarks_stands_in_the_readme() -> None:
    there = {f"{relative(file.parent)}/" for file in (ROOT / "benchmarks").glob("*/*.py")}
    listed = {path for path in tree_of_readme() if path.startswith("benchmarks/")}
    assert there == listed - {"benchmarks/"}


def test_the_readme_names_no_folder_that_does_not_exist() -> None:
    listed = tree_of_readme()
    assert [path for path in listed if not (ROOT / path).exists()] == []
    assert [path for path, purpose in listed.items() if not purpose] == []


@pytest.mark.parametrize("folder", ALL_PACKAGES, ids=relative)
def test_no_folder_holds_more_files_than_one_looks_over(folder: Path) -> None:
    files = [file.name for file in folder.glob("*.py") if file.name != "__init__.py"]
    assert len(files) <= MOST_FILES, "part the folder: see docs/architecture.md"


def test_folders_of_rooms_are_named_where_they_hang_together() -> None:
    """`systems` holds a folder for each paper: its purpose names them all."""
    for room in ROOMS:
        inner = {path.parent.name for path in room.glob("*/__init__.py")}
        assert {name for name in inner if name not in docstring(room).lower()} == set()
