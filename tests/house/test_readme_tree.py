"""The README's annotated tree names every module that there is."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "heterps",
    "runtime/heterps_runtime",
    "agents/heterps_agents",
    "envs/heterps_envs",
    "configs/heterps_configs",
    "benchmarks",
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_stands_in_the_readme_tree_and_nothing_else(folder: str) -> None:
    tree = (ROOT / "README.md").read_text().split("## The tree")[1].split("```")[1]
    _, found, rest = tree.partition(f"\n{folder}/ ")
    assert found, f"{folder}/ is not in the tree"
    listed = set()
    for line in rest.splitlines()[1:]:
        if not line.startswith("  "):
            break
        word = line.split()[0]
        if word.endswith(".py"):
            listed.add(word)
    there = {path.name for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"}
    assert listed == there
