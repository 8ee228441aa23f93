"""Reads the JSON and YAML files of others: every value knows its place, so that errors name it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from heterps_configs.documents.yaml_files import parse_json, read_text, read_yaml
from heterps_configs.errors import DocumentError

_SHOWN_KEYS = 8
_SHOWN_LENGTH = 60


class Entry:
    """One value of a file, with the file's name and the path to the value.

    Attributes:
        value: The plain data.
        source: Name of the file.
        path: Keys and indices from the top to this value, joined by dots.
    """

    def __init__(self, value: Any, source: str, path: str = "") -> None:
        self.value, self.source, self.path = value, source, path

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Entry:
        """Reads a JSON file.

        Raises:
            DocumentError: The file is not JSON; the message has the line.
            HeterpsError: The file cannot be read.
        """
        source = os.fspath(path)
        return cls(parse_json(read_text(Path(path), source), source), source)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Entry:
        """Reads a YAML file.

        Raises:
            HeterpsError: The file cannot be read, or is not YAML.
        """
        return cls(read_yaml(path), os.fspath(path))

    def fail(self, problem: str) -> NoReturn:
        """Refuses this value.

        Raises:
            DocumentError: Always.
        """
        raise DocumentError(self.source, [f"{self.path}: {problem}" if self.path else problem])

    def child(self, key: str | int, value: Any) -> Entry:
        """A value inside this one."""
        return Entry(value, self.source, f"{self.path}.{key}" if self.path else str(key))

    def has(self, key: str) -> bool:
        """Whether this mapping has a key."""
        return key in self.mapping()

    def __getitem__(self, key: str) -> Entry:
        """The value under a key.

        Raises:
            DocumentError: This is no mapping, or has no such key.
        """
        mapping = self.mapping()
        if key not in mapping:
            known = ", ".join(map(str, list(mapping)[:_SHOWN_KEYS])) or "nothing"
            more = ", ..." if len(mapping) > _SHOWN_KEYS else ""
            self.fail(f"{key!r} is missing; it has {known}{more}")
        return self.child(key, mapping[key])

    def items(self) -> Iterator[tuple[str, Entry]]:
        """The keys, as text, and values of this mapping."""
        for key, value in self.mapping().items():
            yield str(key), self.child(key, value)

    def entries(self, length: int | None = None) -> list[Entry]:
        """The values of this list.

        Raises:
            DocumentError: This is no list, or not one of `length`.
        """
        if not isinstance(self.value, list):
            self.fail(f"must be a list{self._given()}")
        if length is not None and len(self.value) != length:
            self.fail(f"must have {length} values, got {len(self.value)}")
        return [self.child(index, value) for index, value in enumerate(self.value)]

    def mapping(self) -> dict[Any, Any]:
        """This value as a mapping.

        Raises:
            DocumentError: It is none.
        """
        if not isinstance(self.value, dict):
            self.fail(f"must be a mapping{self._given()}")
        return dict(self.value)

    def number(self, minimum: float = 0.0, *, above: bool = False) -> float:
        """This value as a finite number.

        Args:
            minimum: Least value that is allowed; `-inf` for any.
            above: The value must be larger than the minimum.

        Raises:
            DocumentError: It is none, or too small.
        """
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(f"must be a number{self._given()}")
        if not math.isfinite(value):
            self.fail(f"must be a finite number{self._given()}")
        if value < minimum or (above and value <= minimum):
            self.fail(f"must be {'larger than' if above else 'at least'} {minimum:g}, got {value}")
        return float(value)

    def numbers(self, length: int | None = None) -> tuple[float, ...]:
        """This value as a list of numbers, none below 0."""
        return tuple(entry.number() for entry in self.entries(length))

    def integer(self, minimum: int = 0) -> int:
        """This value as a whole number (`4.0` counts, as JSON writers differ).

        Raises:
            DocumentError: It is none, or too small.
        """
        value = self.number(minimum)
        if value != int(value):
            self.fail(f"must be a whole number, got {value}")
        return int(value)

    def text(self) -> str:
        """This value as text.

        Raises:
            DocumentError: It is none.
        """
        if not isinstance(self.value, str):
            self.fail(f"must be text{self._given()}")
        return str(self.value)

    def _given(self) -> str:
        text = repr(self.value)
        return f", got {text}" if len(text) <= _SHOWN_LENGTH else ""


def whole_number_key(entry: Entry, key: str, what: str) -> int:
    """A mapping's key that must be a whole number above 0, such as a micro-batch size.

    Raises:
        DocumentError: It is none.
    """
    if not (key.isdecimal() and int(key) > 0):
        entry.fail(f"{key!r} is no {what}: expected a whole number above 0")
    return int(key)
