"""What all documents share: frozen pydantic models, YAML in and out, all errors at once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from heterps_configs.documents.yaml_files import parse_yaml, read_yaml, to_yaml, write_text
from heterps_configs.errors import DocumentError
from heterps_configs.problems import describe_problems
from heterps_configs.recognised import other_kind

__all__ = [
    "BYTES_PER_ELEMENT",
    "Document",
    "Dtype",
    "NumberFormat",
    "compute_format",
    "describe_problems",
    "is_mixed",
    "parameter_format",
    "parse_yaml",
    "read_yaml",
    "write_text",
]

NumberFormat = Literal["float32", "tf32", "float16", "bfloat16"]
# `mixed-bfloat16`: parameters, gradients and optimizer state are float32; the forward pass runs
# under torch's autocast, which computes matrix products and convolutions in bfloat16.
# `tf32`: all numbers are float32; tensor cores compute matrix products, of which they read 19 bits.
Dtype = Literal["float32", "tf32", "float16", "bfloat16", "mixed-bfloat16"]

BYTES_PER_ELEMENT: Mapping[NumberFormat, int] = {
    "float32": 4,
    "tf32": 4,
    "float16": 2,
    "bfloat16": 2,
}


def parameter_format(dtype: Dtype) -> NumberFormat:
    """Format of parameters and gradients, by its name in torch."""
    return "float32" if dtype == "mixed-bfloat16" or dtype == "tf32" else dtype


def compute_format(dtype: Dtype) -> NumberFormat:
    """Format that matrix products are computed in."""
    return "bfloat16" if dtype == "mixed-bfloat16" else dtype


def is_mixed(dtype: Dtype) -> bool:
    """Whether forward passes run under autocast, which makes copies of parameters."""
    return dtype == "mixed-bfloat16"


class Document(BaseModel):
    """Base of every document: immutable, and a field that the schema does not know is an error.

    Mappings inside a document are annotated as `Mapping`, so that the type checker refuses to
    change them.
    """

    # Schemas are built when they are first needed: no command needs all of them.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    def __init__(self, /, **fields: Any) -> None:
        """Of values of Python's own; who makes one by hand is told what the reader of a file is.

        Raises:
            DocumentError: With every problem.
        """
        try:
            super().__init__(**fields)
        except ValidationError as error:
            problems = describe_problems(type(self), error)
            raise DocumentError(type(self).__name__, problems) from None

    # Or pydantic would call it for each document within a file as well, which takes far longer.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

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
            found = "an empty file" if data is None else type(data).__name__
            raise DocumentError(source, [f"expected a mapping of fields, got {found}"])
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            other = other_kind(cls, data)
            if other is not None:
                raise DocumentError(source, [other]) from None
            # pydantic checks what lies between the fields only once every field is fine. A user
            # wants both at once.
            lines = [*describe_problems(cls, error), *cls.problems_between_fields(data)]
            raise DocumentError(source, dict.fromkeys(lines)) from None

    @classmethod
    def problems_between_fields(cls, data: Mapping[str, Any]) -> list[str]:
        """Problems of plain data whose single fields may be broken too; none by default."""
        return []

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a YAML or JSON file.

        Raises:
            DocumentError: The file is not YAML, or breaks the schema.
            HeterpsError: The file cannot be read.
        """
        return cls.from_mapping(read_yaml(path), source=str(path))

    def changed(self, **fields: Any) -> Self:
        """A copy with some fields replaced, checked as any document is.

        Raises:
            DocumentError: With every problem of the new values.
        """
        kept = {name: getattr(self, name) for name in type(self).model_fields}
        return self.from_mapping({**kept, **fields}, source=f"{type(self).__name__}.changed")

    @classmethod
    def unchecked(cls, **fields: Any) -> Self:
        """A document of values that the program itself computed, and that keep the schema.

        For inner loops alone: a check takes ten times as long as the rest.
        """
        known = _defaults(cls)
        values = {name: fields[name] if name in fields else known[name] for name in known}
        return _made(cls, values, set(fields))

    def changed_unchecked(self, **fields: Any) -> Self:
        """What `changed` returns, of values as in `unchecked`."""
        # What a document knows of itself (`cached_property`) is another one's now.
        own = self.__dict__
        values = {
            name: fields[name] if name in fields else own[name]
            for name in type(self).__pydantic_fields__
        }
        return _made(type(self), values, self.__pydantic_fields_set__ | fields.keys())

    def __getstate__(self) -> dict[Any, Any]:
        """Its fields alone.

        What a document knows of itself is found again where it is needed; here another thread may
        learn more of it while this one pickles it.
        """
        own = self.__dict__
        fields = {name: own[name] for name in type(self).__pydantic_fields__}
        return {**super().__getstate__(), "__dict__": fields}

    def to_mapping(self) -> dict[str, Any]:
        """Plain data (strings, numbers, lists, mappings) without fields that hold their default."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def to_yaml(self) -> str:
        """The document as YAML text."""
        return to_yaml(self.to_mapping())

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Writes the document as YAML: to a temporary file first, then renamed.

        Raises:
            HeterpsError: The file cannot be written.
        """
        write_text(path, self.to_yaml())

    def fingerprint(self) -> str:
        """16 hexadecimal digits that change when the content changes."""
        text = json.dumps(self.to_mapping(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


Made = TypeVar("Made", bound=Document)


def _made(kind: type[Made], values: dict[str, Any], given: set[str]) -> Made:
    """A document of these values, which nobody checks; pydantic's own way takes three times that.

    Args:
        kind: Of which it is one.
        values: Of all its fields, in their order.
        given: The fields that are not left at their defaults.
    """
    made = kind.__new__(kind)
    for name, value in (
        ("__dict__", values),
        ("__pydantic_fields_set__", given),
        ("__pydantic_extra__", None),
        ("__pydantic_private__", None),
    ):
        object.__setattr__(made, name, value)
    return made


@cache
def _defaults(kind: type[Document]) -> dict[str, Any]:
    """For each field of a document its default; documents cannot be changed, so all share it."""
    return {
        name: None if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in kind.model_fields.items()
    }
