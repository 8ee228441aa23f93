"""What is wrong with a document, in words: one line for each problem, starting with its path."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

# What a field of each unit holds; the longest suffix that fits comes first.
UNITS = {
    "_bytes_per_s": "a plain number of bytes per second, such as 1.25e9",
    "_bytes": "a plain whole number of bytes, such as 40e9",
    "_usd_per_hour": "a plain number of US dollars per hour, such as 2.5",
    "_flops_per_s": "a plain number of floating-point operations per second, such as 312e12",
    "_samples_per_s": "a plain number of samples per second",
    "_s": "a plain number of seconds, such as 1e-4",
}

_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
}
_LONGEST_INPUT = 60


class InconsistentError(ValueError):
    """Fields that are fine one by one but do not fit together; raised inside validators.

    Attributes:
        problems: One line for each problem, each starting with the path of its field.
    """

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


def repeated(where: str, field: str, names: Iterable[str | None]) -> Iterator[str]:
    """A problem for every name (None: no name) that an earlier entry of the list has already."""
    first: dict[str, int] = {}
    for index, name in enumerate(names):
        if name is not None and first.setdefault(name, index) != index:
            yield f"{where}.{index}.{field}: {name!r} is taken by {where}.{first[name]}"


def describe_problems(model: type[BaseModel], error: ValidationError) -> list[str]:
    """One line for each problem: path, what is wrong, what is allowed.

    Args:
        model: The class that refused the data.
        error: What pydantic says.
    """
    lines: list[str] = []
    for problem in error.errors():
        if _is_consequence(problem):
            continue
        location = [part for part in problem["loc"] if part != "[key]"]
        cause = problem.get("ctx", {}).get("error")
        messages = (
            cause.problems
            if isinstance(cause, InconsistentError)
            else [_message(model, problem, location)]
        )
        path = ".".join(map(str, location))
        separator = "." if isinstance(cause, InconsistentError) else ": "
        lines.extend(f"{path}{separator}{text}" if path else text for text in messages)
    return lines


def _is_consequence(problem: Any) -> bool:
    """Pydantic calls a list too short when its entries are broken, which are reported already."""
    return problem["type"] == "too_short" and bool(problem["input"])


def _message(model: type[BaseModel], problem: Any, location: Sequence[str | int]) -> str:
    kind = problem["type"]
    if kind == "extra_forbidden":
        return _unknown_field(str(location[-1]), _fields_at(model, location[:-1]))
    unit = _unit(location)
    if kind == "missing":
        return f"is missing; expected {unit}" if unit else "is missing"
    if kind == "model_type":
        return f"must be a mapping with {', '.join(_fields_at(model, location))}{_given(problem)}"
    if kind in ("too_short", "string_too_short"):
        return f"needs at least {problem['ctx']['min_length']} {_counted(kind)}"
    if (
        kind in ("int_parsing", "int_type", "int_from_float", "float_parsing", "float_type")
        and unit
    ):
        return f"must be {unit}{_given(problem)}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}{_given(problem)}"
    text = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    text = text.replace("greater than or equal to", "at least")
    text = text.replace("less than or equal to", "at most")
    return text if kind == "value_error" else f"{text}{_given(problem)}"


def _counted(kind: str) -> str:
    return "character" if kind == "string_too_short" else "entry"


def _given(problem: Any) -> str:
    """The offending value, where it is short enough to recognise."""
    text = repr(problem["input"])
    return f", got {text}" if len(text) <= _LONGEST_INPUT else ""


def _unit(location: Sequence[str | int]) -> str | None:
    """What the innermost named field with a unit holds (a mapping's keys have none)."""
    for part in reversed(location):
        for suffix, text in UNITS.items():
            if str(part).endswith(suffix):
                return text
    return None


def _unknown_field(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return "unknown field; " + (
        f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    )


def _fields_at(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The fields that the model at a place in a document has."""
    annotation: Any = model
    for part in location:
        # An index into a list stays in the same annotation: `tuple[Node, ...]` holds nodes.
        fields = {
            name: field
            for entry in _models_in(annotation)
            for name, field in entry.model_fields.items()
        }
        if part in fields:
            annotation = fields[str(part)].annotation
    return [name for entry in _models_in(annotation) for name in entry.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]
