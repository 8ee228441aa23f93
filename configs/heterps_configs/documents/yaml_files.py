"""YAML in and out: clear errors, numbers as people write them, files replaced in one move."""

from __future__ import annotations

import json
import os
import re
import tempfile
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.outputs import check_replaceable

_FLOAT_TAG, _TIMESTAMP_TAG = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"
# YAML 1.2 floats. PyYAML follows YAML 1.1, for which 40e9 and 1e-4 are strings.
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")

# A text of a few lines can stand for more values than memory holds (aliases of aliases), and
# PyYAML's composer takes a frame of the C stack for each level: far enough down, the process dies.
MOST_CHARACTERS, MOST_VALUES, DEEPEST = 2**25, 500_000, 100

_BRACKET = re.compile(r"[\[\]{}]")
_INDENTATION = re.compile(r"^[ ?:-]*", re.MULTILINE)
# Texts below it have fewer values than `MOST_VALUES`: each takes two characters at least.
_SURELY_FEW = 2 * MOST_VALUES


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe loader in which a repeated key is an error, `40e9` a number and a date a string."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own class attribute)
        first: [entry for entry in resolvers if entry[0] != _TIMESTAMP_TAG]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f"the key {key.value!r} stands twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                seen.add(key.value)
        return dict(super().construct_mapping(node, deep=deep))


# Mappings that every layer of a model has: a line for each number would be most of a file.
_ON_FEW_LINES = frozenset({"tensor_split"})


class _CompactDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """YAML with lists of scalars on one line, so that plans and profiles stay readable."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        items = list(sequence)
        flat = all(isinstance(item, str | int | float | bool) or item is None for item in items)
        return super().represent_sequence(tag, items, flow_style=flat)

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> Any:
        node = super().represent_mapping(tag, mapping, flow_style=flow_style)
        for key, value in node.value:
            if key.value in _ON_FEW_LINES and isinstance(value, yaml.MappingNode):
                value.flow_style = True
        return node

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _class in (_Loader, _CompactDumper):
    _class.add_implicit_resolver(_FLOAT_TAG, _FLOAT, list("-+.0123456789"))


def parse_yaml(text: str, source: str) -> Any:
    """Parses YAML (or JSON) text.

    Args:
        text: The text.
        source: What error messages call it.

    Raises:
        DocumentError: A syntax error or a repeated key, with its line; a value that its tag does
            not fit; more than `MOST_VALUES` values, those of aliases counted where they stand.
    """
    try:
        problem = _problem_of_size(text, _Loader)
        if problem is not None:
            raise DocumentError(source, [problem])
        return _construct(text, source)
    except yaml.reader.ReaderError:
        raise DocumentError(source, ["not a text file"]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise DocumentError(source, [f"{where}{getattr(error, 'problem', error)}"]) from None


def parse_json(text: str, source: str, is_unique: bool = False) -> Any:
    """Parses JSON text, which large files are read faster as.

    Args:
        text: The text.
        source: What error messages call it.
        is_unique: Whether a repeated key is an error; else the last one counts.

    Raises:
        DocumentError: It is no JSON, with the line; or nested too deep.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique if is_unique else None)
    except json.JSONDecodeError as error:
        raise DocumentError(source, [f"line {error.lineno}: {error.msg}"]) from None
    except RecursionError:
        raise DocumentError(source, ["not a JSON document (nested too deep)"]) from None
    except ValueError as error:  # a whole number of more digits than Python reads
        raise DocumentError(source, [f"a value that cannot be read: {error}"]) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} stands twice")
    return found


def _construct(text: str, source: str) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        problem = None if node is None else _problem_of_aliases(node, text)
        if problem is not None:
            raise DocumentError(source, [problem])
        return None if node is None else loader.construct_document(node)
    except UnicodeEncodeError:
        raise DocumentError(source, ["half of a character (a lone surrogate)"]) from None
    except (yaml.YAMLError, DocumentError):
        raise
    except Exception as error:
        # PyYAML's constructors of numbers, dates and bytes take any text for granted.
        raise DocumentError(source, [f"a value that cannot be read: {error}"]) from None
    finally:
        loader.dispose()


def _problem_of_size(text: str, loader: Any) -> str | None:
    """Why a text is not to be composed; None where it may be.

    Args:
        text: YAML or JSON.
        loader: PyYAML's class of loaders that will read it.
    """
    if len(text) > MOST_CHARACTERS:
        return f"{len(text)} characters; at most {MOST_CHARACTERS} are read"
    if len(text) <= _SURELY_FEW and not _may_be_deep(text):
        return None
    depth = count = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        count += isinstance(event, yaml.NodeEvent)
        if depth > DEEPEST:
            return f"lists and mappings within each other more than {DEEPEST} deep"
        if count > MOST_VALUES:
            return f"more than {MOST_VALUES} values"
    return None


def _may_be_deep(text: str) -> bool:
    """False where brackets and indentation are too few for `DEEPEST`; brackets in texts count."""
    if max(match.end() - match.start() for match in _INDENTATION.finditer(text)) > DEEPEST // 2:
        return True
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += 1 if match[0] in "[{" else -1
        if depth > DEEPEST // 4:
            return True
        depth = max(depth, 0)
    return False


def _problem_of_aliases(node: yaml.Node, text: str) -> str | None:
    """Why a composed text is not to be constructed; None where it may be."""
    if "*" not in text:
        return None
    count = _expanded(node, {})
    if count is None:
        return "an alias stands within what it stands for"
    if count > MOST_VALUES:
        return f"more than {MOST_VALUES} values, those of its aliases counted where they stand"
    return None


def _expanded(node: yaml.Node, known: dict[int, int | None]) -> int | None:
    """Values with those of aliases; None for what contains itself."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = None
    children = [] if isinstance(node, yaml.ScalarNode) else node.value
    if isinstance(node, yaml.MappingNode):
        children = [part for pair in children for part in pair]
    total = 1
    for child in children:
        count = _expanded(child, known)
        if count is None:
            return None
        total += count
    known[id(node)] = total
    return total


def to_yaml(data: Any) -> str:
    """Plain data as YAML text, keys in their own order."""
    return str(
        yaml.dump(data, sort_keys=False, width=100, allow_unicode=True, Dumper=_CompactDumper)
    )


def read_text(file: Traversable, source: str) -> str:
    """The text of a file.

    Raises:
        HeterpsError: It cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise HeterpsError(f"{source}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise HeterpsError(f"{source}: cannot be read: not a text file") from None


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Parses a YAML (or JSON) file.

    Raises:
        HeterpsError: The file cannot be read, or is not YAML.
    """
    source = os.fspath(path)
    return parse_yaml(read_text(Path(path), source), source)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file in one move: a reader sees the old content or the new, never half of it.

    A link stays one: what it leads to is written.

    Raises:
        HeterpsError: The file cannot be written, or something that is no regular file is there.
    """
    try:
        target = Path(path).resolve()
        check_replaceable(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".heterps-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except (OSError, RuntimeError) as error:  # a circle of links is a RuntimeError
        reason = getattr(error, "strerror", None) or error
        raise HeterpsError(f"{path}: cannot be written: {reason}") from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes text as UTF-8, see `write_bytes`."""
    write_bytes(path, text.encode())
