"""Rows of an interrupted benchmark come back, unless they were made with other settings."""

from __future__ import annotations

from pathlib import Path

from benchmarks.fidelity_sections.own_store import RowStore


def test_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    RowStore(path, {"seed": 0}).add("a", {"error": 0.1})
    again = RowStore(path, {"seed": 0})
    assert "a" in again
    assert again["a"] == {"error": 0.1}


def test_rows_of_other_settings_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    RowStore(path, {"seed": 0}).add("a", {})
    assert "a" not in RowStore(path, {"seed": 1})


def test_without_a_file_rows_live_in_memory() -> None:
    store = RowStore(None, {})
    store.add("a", {"x": 1})
    assert store["a"] == {"x": 1}
