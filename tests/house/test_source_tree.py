"""The house rules that a reader of the source relies on."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    name: ROOT / path
    for name, path in {
        "heterps": "heterps",
        "heterps_runtime": "runtime/heterps_runtime",
        "heterps_agents": "agents/heterps_agents",
        "heterps_envs": "envs/heterps_envs",
        "heterps_configs": "configs/heterps_configs",
    }.items()
}


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_ships_its_types(name: str) -> None:
    assert (PACKAGES[name] / "__init__.py").is_file()
    assert (PACKAGES[name] / "py.typed").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_every_module_says_what_it_is(name: str) -> None:
    silent = [
        str(file.relative_to(ROOT))
        for file in PACKAGES[name].rglob("*.py")
        if not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_each_root_holds_one_uniquely_named_package() -> None:
    for name, folder in PACKAGES.items():
        if name != "heterps":
            beside = {path.parent.name for path in folder.parent.glob("*/__init__.py")}
            assert beside == {name}


def test_test_folders_are_not_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
