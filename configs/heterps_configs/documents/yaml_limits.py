"""How large and how deep a YAML text may be, found out before anything is built from it.

A text of a few lines can stand for more values than memory holds (aliases of aliases), and PyYAML's
composer takes a frame of the C stack for each level: far enough down, the process dies.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MOST_CHARACTERS, MOST_VALUES, DEEPEST = 2**25, 500_000, 100

_BRACKET = re.compile(r"[\[\]{}]")
_INDENTATION = re.compile(r"^[ ?:-]*", re.MULTILINE)
# Texts below it have fewer values than `MOST_VALUES`: each takes two characters at least.
_SURELY_FEW = 2 * MOST_VALUES


def problem_of_size(text: str, loader: Any) -> str | None:
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


def problem_of_aliases(node: yaml.Node, text: str) -> str | None:
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
