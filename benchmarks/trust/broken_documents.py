"""Documents that are broken in every way that a file can be: hypothesis draws them.

A document begins as a valid one, or is built from its JSON schema, field by field; then some of it
is broken: another type, a missing or an unknown field, a number that is none or far too large, a
list of another length, control characters, endless nesting. Last its text: cut off, bytes in
between, tags, aliases.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from typing import Any

import yaml
from hypothesis import strategies as st

HOSTILE_NUMBERS = (
    math.nan, math.inf, -math.inf, 0, -0.0, -1, 1, 0.5, 1e-300, -1e-300, 5e-324, 1e300, -1e300,
    2**31, 2**63, -(2**63), 10**30, 10**400, 1e9, 1e12, True, False,
)  # fmt: skip
HOSTILE_TEXTS = (
    "", " ", "null", "nan", "1e400", "-", "~", "..", "../../etc/passwd", "/dev/zero", "a\nb",
    "a\x00b", "\x1b[31m", "[/bold]", "[red]", "%s%n", "{0}", "\u202e", "\ufeff", "é" * 300,
    "x" * 5000, "\U0001f600", "os:system", "nobody.here:none", "a100->t4", "0", "a:b",
)  # fmt: skip
TAGS = (
    "!!python/name:os.system", "!!python/object/apply:os.system [true]", "!!binary x", "!!int x",
    "!!bool x", "!!timestamp x", "!!set {a}", "!!omap [a]", "!unknown {a: b}", "!!float z",
    "&a [*a]", "*nobody", "<<: 1", "!!null 5",
)  # fmt: skip
BINARY = (b"\xff\xfe", b"\x00", b"\x80", b"PK\x03\x04", b"\x93NUMPY", b"\r", b"\xef\xbb\xbf")
LEAST_TEXT_CHANGES = 0.25

Schema = Mapping[str, Any]


def values() -> st.SearchStrategy[Any]:
    """Anything that a YAML file can hold in a field's place."""
    plain = st.one_of(
        st.sampled_from(HOSTILE_NUMBERS),
        st.sampled_from(HOSTILE_TEXTS),
        st.none(),
        st.integers(-5, 5),
        st.text(max_size=8),
    )
    return st.one_of(
        plain,
        st.lists(plain, max_size=3),
        st.dictionaries(st.text(max_size=5), plain, max_size=2),
        st.integers(1, 300).map(_nested),
    )


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def from_schema(schema: Schema, root: Schema | None = None) -> st.SearchStrategy[Any]:
    """Plain data with the fields and types of a JSON schema; not necessarily consistent."""
    root = root or schema
    if "$ref" in schema:
        return from_schema(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    if "anyOf" in schema:
        return st.one_of(*(from_schema(entry, root) for entry in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        needed = set(schema.get("required", ()))
        fields = {name: from_schema(entry, root) for name, entry in schema["properties"].items()}
        return st.fixed_dictionaries(
            {name: entry for name, entry in fields.items() if name in needed},
            optional={name: entry for name, entry in fields.items() if name not in needed},
        )
    if kind == "object":
        entry = schema.get("additionalProperties")
        inner = from_schema(entry, root) if isinstance(entry, Mapping) else values()
        return st.dictionaries(st.text(max_size=6), inner, max_size=2)
    if kind == "array" and "prefixItems" in schema:
        return st.tuples(*(from_schema(part, root) for part in schema["prefixItems"])).map(list)
    if kind == "array":
        return st.lists(
            from_schema(schema.get("items", {}), root),
            min_size=schema.get("minItems", 0),
            max_size=schema.get("minItems", 0) + 2,
        )
    return _scalar(schema)


def _scalar(schema: Schema) -> st.SearchStrategy[Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1e6))
    high = schema.get("maximum", schema.get("exclusiveMaximum", 1e6))
    kind = schema.get("type")
    if kind == "integer":
        return st.one_of(st.integers(int(low), int(high)), st.integers(int(low), int(low) + 8))
    if kind == "number":
        return st.floats(low, high, allow_nan=False)
    if kind == "boolean":
        return st.booleans()
    if kind == "string":
        return st.text(min_size=schema.get("minLength", 0), max_size=12)
    return values()


def _places(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths to all values within a document."""
    children: Any = ()
    if isinstance(data, dict):
        children = data.items()
    elif isinstance(data, list):
        children = enumerate(data[:40])
    found = [path] if path else []
    for key, value in children:
        found += _places(value, (*path, key))
    return found


@st.composite
def broken(draw: st.DrawFn, base: Any) -> Any:
    """A document with up to three changes."""
    data = copy.deepcopy(base)
    for _ in range(draw(st.integers(0, 3))):
        places = _places(data)
        if not places:
            break
        path = draw(st.sampled_from(places))
        holder = data
        for key in path[:-1]:
            holder = holder[key]
        _break(draw, holder, path[-1])
    return data


def _break(draw: st.DrawFn, holder: Any, key: str | int) -> None:
    change = draw(st.sampled_from(("replace", "replace", "number", "remove", "add", "repeat")))
    if change == "replace":
        holder[key] = draw(values())
    elif change == "number":
        holder[key] = draw(st.sampled_from(HOSTILE_NUMBERS))
    elif change == "remove":
        del holder[key]
    elif isinstance(holder, dict):
        holder[draw(st.text(max_size=6))] = draw(values()) if change == "add" else holder[key]
    else:
        again = copy.deepcopy(holder[key])
        holder[:] = [*holder, *[again] * draw(st.sampled_from([1, 2, 50]))]


@st.composite
def broken_text(draw: st.DrawFn, text: str) -> bytes:
    """A text with up to two changes that its format does not foresee."""
    content = text.encode("utf-8", errors="surrogatepass")
    if draw(st.floats(0, 1)) > LEAST_TEXT_CHANGES:
        return content
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(content)))
        change = draw(st.sampled_from(("cut", "bytes", "tag", "twice", "swap", "aliases")))
        if change == "cut":
            content = content[:at]
        elif change == "bytes":
            content = content[:at] + draw(st.sampled_from(BINARY)) + content[at:]
        elif change == "tag":
            tag = draw(st.sampled_from(TAGS)).encode()
            colon = content.find(b": ", at)
            content = content[: colon + 2] + tag + content[content.find(b"\n", colon) :]
        elif change == "twice":
            content += b"\n" + content[at : at + 200]
        elif change == "swap":
            content = content[at:] + content[:at]
        else:
            levels = draw(st.integers(2, 30))
            content = b"a0: &a0 [1, 1]\n" + b"".join(
                f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}]\n".encode()
                for i in range(1, levels)
            ) + content  # fmt: skip
    return content


@st.composite
def yaml_files(draw: st.DrawFn, base: Any, schema: Schema | None) -> bytes:
    """The bytes of a YAML (or JSON) file: a valid document or one of a schema, then broken."""
    start = base
    if schema is not None and draw(st.integers(0, 3)) == 0:
        start = draw(from_schema(schema))
    data = draw(broken(start))
    as_json = draw(st.booleans())
    try:
        text = json.dumps(data) if as_json else yaml.safe_dump(data, sort_keys=False)
    except (ValueError, RecursionError, yaml.YAMLError):
        text = repr(data)
    return draw(broken_text(text))


@st.composite
def table_files(draw: st.DrawFn, text: str) -> bytes:
    """The bytes of a CSV file: rows and cells of a valid one, then broken."""
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(draw(st.integers(0, 4))):
        row = draw(st.sampled_from(rows))
        change = draw(st.sampled_from(("cell", "cell", "remove", "add", "row")))
        if change == "cell" and row:
            other = st.one_of(st.sampled_from(HOSTILE_NUMBERS), st.sampled_from(HOSTILE_TEXTS))
            row[draw(st.integers(0, len(row) - 1))] = _cell(draw(other))
        elif change == "remove" and row:
            row.pop()
        elif change == "add":
            row.append(draw(st.sampled_from(HOSTILE_TEXTS)))
        else:
            rows.insert(draw(st.integers(0, len(rows))), list(row))
    return draw(broken_text("\n".join(",".join(row) for row in rows)))


def _cell(value: Any) -> str:
    return str(value) if not isinstance(value, int) or abs(value) < 10**40 else "1" + "0" * 400
