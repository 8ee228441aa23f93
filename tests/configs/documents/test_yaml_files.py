"""YAML as people write it, and files that are never half written."""

from pathlib import Path

import pytest

from heterps_configs.documents.yaml_files import parse_yaml, read_yaml, to_yaml, write_text
from heterps_configs.errors import DocumentError, HeterpsError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("40e9", 40e9),
        ("1e-4", 1e-4),
        ("1.25e9", 1.25e9),
        ("-.5", -0.5),
        ("16", 16),
        ("2025-06-01", "2025-06-01"),
        ("40GB", "40GB"),
        ("a100", "a100"),
        ("'1e5'", "1e5"),
    ],
)
def test_numbers_and_dates_are_what_they_look_like(text: str, value: object) -> None:
    parsed = parse_yaml(f"x: {text}", "file")["x"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_text_that_looks_like_a_number_survives_a_round_trip() -> None:
    data = {"name": "1e5", "date": "2025-06-01", "version": "1.0", "no": "no", "number": 1e-05}
    assert parse_yaml(to_yaml(data), "file") == data


def test_a_repeated_key_is_an_error_with_its_line() -> None:
    with pytest.raises(DocumentError, match=r"^c\.yaml: line 3: the key 'name' stands twice$"):
        parse_yaml("name: a\nnodes: []\nname: b\n", "c.yaml")


def test_a_merge_key_may_be_overridden() -> None:
    text = "base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  b: 3\n"
    assert parse_yaml(text, "file")["other"] == {"a": 1, "b": 3}


def test_a_syntax_error_names_file_and_line() -> None:
    with pytest.raises(DocumentError, match=r"^c\.yaml: line 2: "):
        parse_yaml("a: [1,\nb: }", "c.yaml")


def test_text_is_never_executed() -> None:
    with pytest.raises(DocumentError, match=r"could not determine a constructor"):
        parse_yaml("!!python/object/apply:os.getcwd []", "c.yaml")


def test_a_binary_file_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "image.yaml"
    file.write_bytes(b"\x89PNG\r\n\xff\xfe")
    with pytest.raises(HeterpsError, match=r"image\.yaml: cannot be read: not a text file$"):
        read_yaml(file)


def test_control_characters_are_refused_in_one_line() -> None:
    with pytest.raises(DocumentError, match=r"^c\.yaml: not a text file$"):
        parse_yaml("a: \x00", "c.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match=r"nothing\.yaml: cannot be read: No such file"):
        read_yaml(tmp_path / "nothing.yaml")


def test_writing_makes_folders_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "new" / "file.yaml"
    write_text(target, "a: 1\n")
    write_text(target, "a: 2\n")
    assert target.read_text() == "a: 2\n"
    assert list(target.parent.iterdir()) == [target]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeterpsError, match="cannot be written"):
        write_text(tmp_path / "file" / "plan.yaml", "a: 1\n")


def test_a_folder_in_the_way_is_named_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").mkdir()
    with pytest.raises(HeterpsError, match=r"plan\.yaml: cannot be written"):
        write_text(tmp_path / "plan.yaml", "a: 1\n")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]
