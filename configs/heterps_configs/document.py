"""What all documents share: frozen pydantic models, YAML in and out, all errors of a file at once."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from heterps_configs.errors import DocumentError, HeterpsError

Dtype = Literal["float32", "float16", "bfloat16"]

BYTES_PER_ELEMENT: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}

UNITS = {
    "_bytes_per_s": "a plain number of bytes per second, such as 1.25e9",
    "_bytes": "a plain whole number of bytes, such as 40000000000",
    "_usd_per_hour": "a plain number of US dollars per hour",
    "_flops_per_s": "a plain number of floating-point operations per second",
    "_samples_per_s": "a plain number of samples per second",
    "_s": "a plain number of seconds",
}


class Document(BaseModel):
    """Base of every document: immutable, and a field that the schema does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def from_mapping(cls, data: Any, source: str = "<memory>") -> Self:
        """Validates plain data.

        Args:
            data: What a YAML or JSON file holds.
            source: Name used in the error message.

        Raises:
            DocumentError: With every problem of the document, one line each.
        """
        if not isinstance(data, dict):
            raise DocumentError(source, [f"expected a mapping, got {type(data).__name__}"])
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise DocumentError(source, describe_problems(cls, error)) from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a YAML or JSON file.

        Raises:
            DocumentError: The file is not YAML, or breaks the schema.
            HeterpsError: The file cannot be read.
        """
        return cls.from_mapping(read_yaml(path), source=str(path))

    def to_mapping(self) -> dict[str, Any]:
        """Plain data (strings, numbers, lists, mappings); fields that hold their default are left out."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def to_yaml(self) -> str:
        """The document as YAML text."""
        return yaml.dump(self.to_mapping(), sort_keys=False, width=110, Dumper=_CompactDumper)

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Writes the document as YAML: to a temporary file first, then renamed."""
        write_text(path, self.to_yaml())

    def fingerprint(self) -> str:
        """16 hexadecimal digits that change when the content changes."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class _CompactDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """YAML with lists of scalars on one line, so that plans and profiles stay readable."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        items = list(sequence)
        flat = all(isinstance(item, str | int | float | bool) or item is None for item in items)
        return super().represent_sequence(tag, items, flow_style=flat)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe loader in which a repeated key is an error instead of a silent overwrite."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice", node.start_mark
                )
        return dict(super().construct_mapping(node, deep=deep))


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Parses a YAML (or JSON) file.

    Raises:
        HeterpsError: The file cannot be read, or is not YAML.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise HeterpsError(f"{path}: cannot be read: {reason}") from None
    return parse_yaml(text, source=str(path))


def parse_yaml(text: str, source: str) -> Any:
    """Parses YAML text; a syntax error becomes a `DocumentError` with its line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise DocumentError(source, [f"{where}{getattr(error, 'problem', error)}"]) from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file in one move: a reader sees the old content or the new, never half of it."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise HeterpsError(f"{path}: cannot be written: {error.strerror}") from None


def describe_problems(model: type[BaseModel], error: ValidationError) -> list[str]:
    """One line for each problem: path, what is wrong, what is allowed."""
    known = _field_names(model)
    return [_describe(problem, known) for problem in error.errors()]


def _describe(problem: Any, known: set[str]) -> str:
    location = [str(part) for part in problem["loc"]]
    path = ".".join(location) or "document"
    field = location[-1] if location else ""
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(field, known, n=1, cutoff=0.5)
        return f"{path}: unknown field" + (f"; did you mean {near[0]!r}?" if near else "")
    message = problem["msg"].removeprefix("Value error, ")
    unit = next((text for suffix, text in UNITS.items() if field.endswith(suffix)), None)
    given = (
        f" (got {problem['input']!r})" if isinstance(problem["input"], str | int | float) else ""
    )
    return f"{path}: {message}{given}" + (f"; allowed: {unit}" if unit else "")


def _field_names(model: type[BaseModel]) -> set[str]:
    names: set[str] = set()
    pending, seen = [model], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for name, field in current.model_fields.items():
            names.add(name)
            pending.extend(_models_in(field.annotation))
    return names


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]
