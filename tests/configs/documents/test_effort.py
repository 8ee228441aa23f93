"""Efforts: three that commands ask for, each building only on those above it."""

from pathlib import Path

import pytest

from heterps_configs import library
from heterps_configs.documents.effort import EffortTable
from heterps_configs.documents.yaml_files import to_yaml
from heterps_configs.errors import DocumentError


def test_the_shipped_efforts_are_listed_with_what_they_are() -> None:
    rows = library.describe("efforts")
    assert [name for name, _ in rows] == ["fast", "normal", "high"]
    assert all(text for _, text in rows)


def test_a_table_of_ones_own_may_have_more_efforts(tmp_path: Path) -> None:
    shipped = library.load_efforts()
    widest = shipped.efforts["high"].changed(begins_with="high", width=256)
    mine = EffortTable(efforts={**shipped.efforts, "widest": widest})
    mine.to_file(tmp_path / "mine.yaml")
    assert library.load_efforts(tmp_path / "mine.yaml") == mine


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("normal", "width", 0, "efforts.normal.width: must be greater"),
        ("normal", "graphs", {"samples": 1}, "efforts.normal.graphs.polish_evaluations"),
        ("normal", "beams", 3, "efforts.normal.beams: unknown field"),
        ("normal", "begins_with", "high", "efforts.normal.begins_with: 'high' is no effort above"),
        ("normal", "begins_with", "normal", "'normal' is no effort above it"),
        ("fast", None, None, "efforts: fast must be among them"),
    ],
)
def test_a_broken_table_names_what_is_wrong(
    tmp_path: Path, name: str, field: str | None, value: object, message: str
) -> None:
    table = library.load_efforts().model_dump()
    if field is None:
        del table["efforts"][name]
    else:
        table["efforts"][name][field] = value
    path = tmp_path / "mine.yaml"
    path.write_text(to_yaml(table))
    with pytest.raises(DocumentError, match=message):
        library.load_efforts(path)
