"""What only kernels may call is called by kernels alone: from Python it would end the process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("configs", "envs", "agents", "runtime", "heterps", "benchmarks", "tests")
# Import roots, which are no part of a module's name.
ROOTS = ("configs", "envs", "agents", "runtime")
HELPERS = ("helper", "checked_helper", "uncounted_helper", "allocating_helper")
PLAIN = ("compiled", "njit", "kernel", "checked", "uncounted", "allocating", "inlined", "merged")
DECORATORS = (*PLAIN, *HELPERS)


def test_helpers_are_called_by_kernels_alone() -> None:
    texts = {
        _module(file): file.read_text(encoding="utf-8")
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
    }
    helpers = {
        f"{module}.{kernel.name}"
        for module, text in texts.items()
        if "helper" in text
        for kernel in _kernels(ast.parse(text))
        if any(_is_of_helpers(decorator) for decorator in kernel.decorator_list)
    }
    # To read a text as a program takes long, and most speak of none.
    names = {helper.rpartition(".")[2] for helper in helpers}
    called = {
        f"{name} in {module}"
        for module, text in texts.items()
        if not names.isdisjoint(re.findall(r"\w+", text))
        for name in _names_outside_kernels(module, ast.parse(text))
        if name in helpers
    }
    assert len(helpers) > 100
    assert called == set()


def test_kernels_are_compiled_in_one_place_which_knows_what_they_come_from() -> None:
    compiling = {
        file.relative_to(ROOT).as_posix()
        for folder in (*ROOTS, "heterps", "benchmarks")
        for file in (ROOT / folder).rglob("*.py")
        if "njit" in file.read_text(encoding="utf-8")
    }
    assert compiling == {"envs/heterps_envs/compiled.py"}


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] in ROOTS else parts)


def _kernels(tree: ast.Module) -> list[ast.FunctionDef]:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [
        function
        for function in functions
        if any(_name(decorator) in DECORATORS for decorator in function.decorator_list)
    ]


def _name(decorator: ast.expr) -> str:
    return ast.unparse(decorator).partition("(")[0]


def _is_of_helpers(decorator: ast.expr) -> bool:
    return _name(decorator) in HELPERS


def _names_outside_kernels(module: str, tree: ast.Module) -> Iterator[str]:
    """Full names of what functions that are no kernels, and the module itself, speak of."""
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    nodes: list[ast.AST] = [tree]
    kernels = _kernels(tree)
    while nodes:
        node = nodes.pop()
        if node in kernels:
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Name):
            yield imported.get(node.id, f"{module}.{node.id}")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{imported.get(node.value.id, node.value.id)}.{node.attr}"
