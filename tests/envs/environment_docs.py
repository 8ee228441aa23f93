"""The sections of docs/environments.md that are the environments' own docstrings.

`python -m tests.envs.environment_docs` writes them anew; a test compares.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import gymnasium as gym

from heterps_configs.documents.yaml_files import write_text
from heterps_envs.environments.graph.env import GraphPlacementEnv
from heterps_envs.environments.layer.env import LayerPlacementEnv
from heterps_envs.environments.stage.env import StagePlacementEnv
from heterps_envs.environments.stage.priced_env import PricedStagePlacementEnv

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "environments.md"
ENVIRONMENTS: dict[str, type[gym.Env[Any, Any]]] = {
    "heterps/StagePlacement-v0": StagePlacementEnv,
    "heterps/PricedStagePlacement-v0": PricedStagePlacementEnv,
    "heterps/LayerPlacement-v0": LayerPlacementEnv,
    "heterps/GraphPlacement-v0": GraphPlacementEnv,
}


def section(environment: type[gym.Env[Any, Any]]) -> str:
    """The docstring as Markdown, its headings one level deeper."""
    text = inspect.cleandoc(environment.__doc__ or "")
    return re.sub(r"^## ", "### ", text, flags=re.MULTILINE)


def written(document: str) -> str:
    """The document with every docstring between its two marks."""
    for name, environment in ENVIRONMENTS.items():
        begin, end = f"<!-- docstring of {name} -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = document.partition(begin)
        _, closed, after = rest.partition(end)
        assert found, f"{DOCUMENT.name} has no line {begin!r}"
        assert closed, f"{DOCUMENT.name} has no line {end!r}"
        document = f"{before}{begin}{section(environment)}\n{end}{after}"
    return document


if __name__ == "__main__":
    write_text(DOCUMENT, written(DOCUMENT.read_text()))
