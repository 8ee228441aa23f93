"""Rows of an interrupted benchmark come back, unless they were made with other settings."""

from __future__ import annotations

from pathlib import Path

from benchmarks.shared.row_store import RowStore


def test_rows_come_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowStore(path, {"seed": 0}).add("a", {"error": 0.1})
    again = RowStore(path, {"seed": 0})
    assert "a" in again
    assert again["a"] == {"error": 0.1}


def test_rows_of_other_settings_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowStore(path, {"seed": 0}).add("a", {})
    assert "a" not in RowStore(path, {"seed": 1})


def test_settings_with_tuples_are_the_same_when_they_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    RowStore(path, {"sets": ("a", "b")}).add("a", {})
    assert "a" in RowStore(path, {"sets": ("a", "b")})


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    store = RowStore(path, {})
    store.add("a", {"x": 1})
    store.add("b", {"x": 2})
    path.write_text(path.read_text()[:-5])
    again = RowStore(path, {})
    assert "a" in again
    assert "b" not in again
    again.add("b", {"x": 3})
    assert RowStore(path, {})["b"] == {"x": 3}


def test_without_a_file_rows_live_in_memory() -> None:
    store = RowStore(None, {})
    store.add("a", {"x": 1})
    assert store["a"] == {"x": 1}


def test_a_file_is_removed_when_its_rows_are_written_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    store = RowStore(path, {})
    assert path.exists()
    store.remove()
    assert not path.exists()
