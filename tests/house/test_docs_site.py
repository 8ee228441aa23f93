"""The pages that `make docs` builds: all guides, and all public names."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import heterps

ROOT = Path(__file__).resolve().parents[2]
NAMES = re.findall(r"^::: (\S+)$", (ROOT / "docs/reference.md").read_text(), re.MULTILINE)


def _pages(entry: Any) -> Iterator[str]:
    """The files of a navigation, whatever its depth."""
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from _pages(inner)


def test_every_page_is_in_the_navigation_once() -> None:
    found = sorted(_pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    folder = ROOT / "docs"
    assert found == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.md"))


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_names_what_there_is(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert getattr(importlib.import_module(module), attribute).__doc__


def test_every_public_name_has_its_place_in_the_reference() -> None:
    assert {name.rpartition(".")[2] for name in NAMES} >= {*heterps.__all__} - {"__version__"}
