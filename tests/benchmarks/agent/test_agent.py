"""The command: its sections, its files, and what it says to bad options."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.agent import agent, environments
from heterps_configs.errors import HeterpsError


def _options(**changed: object) -> argparse.Namespace:
    options: dict[str, object] = {
        "quick": True,
        "seed": 0,
        "json": None,
        "markdown": None,
        "tensorboard": None,
        "only": None,
        "workloads": None,
        "policy": None,
        "price_policy": None,
        "graph_policy": None,
        "policies": None,
        "imitation": None,
        "sets": None,
    }
    return argparse.Namespace(**{**options, **changed})


def test_every_section_is_found_in_its_folder() -> None:
    modules = [agent.module_of(name) for name in agent.SECTIONS]
    assert [module for module in modules if find_spec(module) is None] == []


def test_a_section_is_written_where_the_options_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "NUM_ENVS", 4)
    monkeypatch.setattr(environments, "PROBLEMS", 4)
    monkeypatch.setattr(environments, "QUICK_STEPS", 2)
    files = {"json": tmp_path / "out.json", "markdown": str(tmp_path / "out.md")}
    agent.run(_options(only="environments", tensorboard=str(tmp_path / "events"), **files))
    rows = json.loads((tmp_path / "out.json").read_text())["environments"]["tables"][0]["rows"]
    assert [row["form"] for row in rows] == ["native", "DummyVecEnv"] * 3
    assert all(row["steps_per_s"] > 0 for row in rows)
    assert "| GraphPlacement-v0 | native |" in (tmp_path / "out.md").read_text()
    assert list((tmp_path / "events").rglob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"only": "chain"}, "chains"),
        ({"workloads": "/no/such/folder"}, "--workloads: /no/such/folder is no folder"),
        ({"only": "chains", "policy": "generalits"}, "generalist"),
        ({"only": "training", "policies": "nobody.npz"}, "nobody.npz"),
    ],
)
def test_bad_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(HeterpsError, match=message):
        agent.run(_options(**options))
