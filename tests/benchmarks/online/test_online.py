"""The command: its sections, its files, what it says to bad options."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.agent.section import TableRows
from benchmarks.online import online
from benchmarks.online.section import SectionResult, Target, judged
from benchmarks.shared.row_store import Settings
from heterps_configs.errors import HeterpsError


def _options(**changed: object) -> argparse.Namespace:
    options: dict[str, object] = {
        "quick": True,
        "seed": 0,
        "json": None,
        "markdown": None,
        "only": None,
    }
    return argparse.Namespace(**{**options, **changed})


@pytest.fixture
def section(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("benchmarks.online.invented")

    def run(settings: Settings) -> SectionResult:
        store = settings.store("invented")
        if "row" not in store:
            store.add("row", {"case": "a", "regret_median": 0.012, "step_s": float("inf")})
        tables = [TableRows("cases", "Cases", "A note.", [store["row"]])]
        return SectionResult(tables, {"regret": 0.012}, store)

    module.__dict__.update(
        TITLE="Invented", TARGETS=[Target("regret", "regret", 0.01, unit="%")], run=run
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(online, "SECTIONS", ("invented",))
    return module


def test_a_section_is_written_where_the_options_say(section: ModuleType, tmp_path: Path) -> None:
    files = {"json": tmp_path / "out.json", "markdown": str(tmp_path / "out.md")}
    online.run(_options(**files))
    entry = json.loads((tmp_path / "out.json").read_text())["invented"]
    assert entry["command"] == "python benchmarks/online/online.py --only invented --quick"
    assert entry["tables"][0]["rows"][0]["step_s"] is None
    text = (tmp_path / "out.md").read_text()
    assert "| regret | at most 1 % | 1.2 % | no |" in text
    assert "## Invented" in text
    assert "| a | 1.20% |  |" in text


def test_sections_of_earlier_runs_stay_in_the_file(section: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text(json.dumps({"drift": {"summary": {}}}))
    online.run(_options(json=path))
    assert sorted(json.loads(path.read_text())) == ["drift", "invented"]


def test_finished_rows_outlive_an_interrupted_run(section: ModuleType, tmp_path: Path) -> None:
    settings = Settings(partial_file=tmp_path / "out.partial.jsonl")
    settings.store("invented", problems=80).add("row", {"case": "kept"})
    assert settings.store("invented", problems=80)["row"] == {"case": "kept"}
    assert "row" not in settings.store("invented", problems=40)


def test_what_fails_is_named_and_the_other_sections_run(
    section: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(settings: Settings) -> SectionResult:
        raise HeterpsError("no device")

    broken = ModuleType("benchmarks.online.broken")
    broken.__dict__.update(TITLE="Broken", TARGETS=[], run=fail)
    monkeypatch.setitem(sys.modules, broken.__name__, broken)
    monkeypatch.setattr(online, "SECTIONS", ("broken", "invented"))
    path = tmp_path / "out.json"
    with pytest.raises(HeterpsError, match="broken: no device"):
        online.run(_options(json=path))
    assert list(json.loads(path.read_text())) == ["invented"]


def test_bad_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match="drift"):
        online.run(_options(only="drifd"))
    path = tmp_path / "list.json"
    path.write_text("not JSON")
    with pytest.raises(HeterpsError, match="is no result of this benchmark"):
        online.run(_options(json=path))


def test_targets_without_a_number_are_left_out() -> None:
    targets = [Target("goodput", "share", 0.95, at_least=True, unit="%"), Target("lost", "no", 0)]
    assert judged(targets, {"share": 0.97}) == [
        {"what": "goodput", "must reach": "at least 95 %", "measured": "97 %", "met": "yes"}
    ]
