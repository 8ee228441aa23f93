"""YAML in and out: clear errors, numbers as people write them, files replaced in one move."""

from __future__ import annotations

import os
import re
import tempfile
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from heterps_configs.documents.yaml_limits import problem_of_aliases, problem_of_size
from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.outputs import check_replaceable

_FLOAT_TAG, _TIMESTAMP_TAG = "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"
# YAML 1.2 floats. PyYAML follows YAML 1.1, for which 40e9 and 1e-4 are strings.
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")


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


class _CompactDumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """YAML with lists of scalars on one line, so that plans and profiles stay readable."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        items = list(sequence)
        flat = all(isinstance(item, str | int | float | bool) or item is None for item in items)
        return super().represent_sequence(tag, items, flow_style=flat)

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
        problem = problem_of_size(text, _Loader)
        if problem is not None:
            raise DocumentError(source, [problem])
        return _construct(text, source)
    except yaml.reader.ReaderError:
        raise DocumentError(source, ["not a text file"]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise DocumentError(source, [f"{where}{getattr(error, 'problem', error)}"]) from None


def _construct(text: str, source: str) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        problem = None if node is None else problem_of_aliases(node, text)
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
