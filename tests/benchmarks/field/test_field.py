"""The benchmark of the field from its options to its files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.field import field


@pytest.mark.slow
def test_rows_tables_and_summary_are_written_and_a_second_run_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, data, text = tmp_path / "rows.jsonl", tmp_path / "field.json", tmp_path / "field.md"
    arguments = [
        *("--quick", "--only", "one-pod", "--planner", "auto,greedy,whale,heterps-price"),
        *("--keep", str(kept), "--json", str(data), "--markdown", str(text)),
    ]
    monkeypatch.setattr(sys, "argv", ["field.py", *arguments])
    field.main()
    content = json.loads(data.read_text())
    assert {row["planner"] for row in content["rows"]} == {
        "auto", "greedy", "whale", "heterps-price",
    }  # fmt: skip
    assert content["summary"]["set"] == "development"
    assert content["summary"]["problems"] == 1
    price = next(row for row in content["rows"] if row["planner"] == "heterps-price")
    assert (price["kind"], price["over_best"]) == ("refused", None)
    assert "1 x minimises the price of a sample" in text.read_text()
    assert "one-pod/0" in capsys.readouterr().err

    def nobody(*_: object) -> None:
        raise AssertionError("it was asked before")

    monkeypatch.setattr("benchmarks.field.asking.ask", nobody)
    field.main()
    assert json.loads(data.read_text())["rows"] == content["rows"]


@pytest.mark.parametrize(
    "arguments", [("--set", "frozn"), ("--only", "pods")], ids=["set", "family"]
)
def test_a_wrong_name_ends_it_with_the_right_ones(
    arguments: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["field.py", *arguments])
    with pytest.raises(SystemExit, match=f"{arguments[0]} {arguments[1]}: "):
        field.main()
