"""What README and docs point to is there: files, modules, benchmarks, commands, options."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.house.documents import FLOORS, ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
PACKAGES = {Path(floor).name: ROOT / floor for floor in FLOORS}
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAME = re.compile(r"`((?:heterps\w*|\w+)(?:\.\w+)+)")
BENCHMARK = re.compile(r"benchmarks/[\w/]+\.py")
MODULE_RUN = re.compile(r"python -m ([\w.]+)")
SOURCE = re.compile(r"`((?:agents|configs|envs|runtime|heterps|tests|benchmarks|docs)/[\w./]+)`")
HETERPS = re.compile(r"^(?:\s*|.*`)heterps ([a-z][a-z-]*)([^`#|\n]*)", re.MULTILINE)


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_relative_link_points_to_a_file(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in targets if not (page.parent / link).exists()] == []


def files_of(name: str) -> Iterator[tuple[Path, list[str]]]:
    """The file that a dotted name begins with, and what must stand in it."""
    parts = name.split(".")
    first, *_ = parts
    for floor, folder in PACKAGES.items():
        path = folder.parent if first == floor else folder
        for length in range(len(parts), 0, -1):
            file = path.joinpath(*parts[:length])
            if file.with_suffix(".py").is_file():
                yield file.with_suffix(".py"), parts[length:]
                break
            if (file / "__init__.py").is_file():
                yield file / "__init__.py", parts[length:]
                break


def is_there(name: str) -> bool:
    """Whether a dotted name is a module of a floor, or something that stands in one."""
    return any(
        all(is_defined(part, file.read_text()) for part in rest) for file, rest in files_of(name)
    )


def is_defined(name: str, source: str) -> bool:
    """Whether a file defines a function, a class or a value of that name, or hands it on."""
    pattern = rf"(?:def|class) {name}\b|^\s*{name}\b\s*[:=]| as {name}$"
    return re.search(pattern, source, re.MULTILINE) is not None


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_module_that_is_named_is_there(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # It names what has moved.
    names = {name for name in NAME.findall(page.read_text()) if name.startswith("heterps")}
    assert sorted(name for name in names if not is_there(name)) == []


def test_what_has_moved_is_where_the_changelog_says() -> None:
    rows = re.findall(
        r"^\| `.*\| (`heterps.*) \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    names = [name for row in rows for text in re.findall(r"`([^`]+)`", row) for name in spelt(text)]
    assert len(names) > 30
    assert [name for name in names if not is_there(name)] == []


def spelt(text: str) -> list[str]:
    """The names of `a.{b,c}.d`: `a.b.d` and `a.c.d`."""
    before, _, rest = text.partition("{")
    inner, _, after = rest.partition("}")
    return [before + part + after for part in inner.split(",")]


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "design").glob("*.md")), ids=relative)
def test_every_short_name_of_a_module_in_the_design_is_there(page: Path) -> None:
    rooms = {file.parent.name for floor in PACKAGES.values() for file in floor.rglob("*.py")}
    short = {name for name in NAME.findall(page.read_text()) if name.split(".")[0] in rooms}
    assert sorted(name for name in short if not is_there(name)) == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_file_of_the_source_that_is_named_is_there(page: Path) -> None:
    text = page.read_text()
    named = {*BENCHMARK.findall(text), *SOURCE.findall(text)}
    if page.name == "CHANGELOG.md":
        return  # It names what has moved.
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_every_short_name_of_a_file_in_the_architecture_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    tops = (*PACKAGES.values(), ROOT / "tests")
    files = [f"/{relative(file)}" for top in tops for file in top.rglob("*.py")]
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    assert len(named) > 20
    assert sorted(n for n in named if not any(f.endswith(f"/{n}") for f in files)) == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_module_that_is_run_is_there(page: Path) -> None:
    run = {name for name in MODULE_RUN.findall(page.read_text()) if name.split(".")[0] != "pip"}
    assert sorted(name for name in run if importlib.util.find_spec(name) is None) == []


def options() -> dict[str, set[str]]:
    """Command -> the options that it takes."""
    import typer.main

    from heterps.cli.app import app

    group: Any = typer.main.get_command(app)
    return {
        name: {text for p in command.params for text in (*p.opts, *p.secondary_opts)}
        for name, command in group.commands.items()
    }


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=relative)
def test_every_command_takes_the_options_that_are_shown(page: Path) -> None:
    known = options()
    wrong = []
    for name, rest in HETERPS.findall(page.read_text()):
        used = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest))
        if name not in known or not used <= known[name] | {"--help"}:
            wrong.append(f"heterps {name}{rest}")
    assert wrong == []
