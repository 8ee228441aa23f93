"""Keeps torch's compiler out of processes that compile nothing: importing it takes seconds.

torch imports `torch._dynamo`, some 800 modules, when the first fake tensor mode or the first
optimizer is made: to read two settings, and to keep functions from being compiled. Until something
else is asked of it, a stand-in answers that; then the real package takes its place.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


class _StandIn(ModuleType):
    """What torch asks of its compiler where nothing is compiled."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(_NAME)
        # Submodules, such as the settings, are the real ones.
        self.__path__ = path

    @staticmethod
    def graph_break(msg: str = "") -> None:
        """Has a meaning in compiled code only."""

    @staticmethod
    def disable(fn: Callable[..., Any], *args: object, **options: object) -> Callable[..., Any]:
        """Nothing compiles the function."""
        return fn

    class trace_rules:
        """New process groups clear a cache of rules, which is empty."""

        @staticmethod
        def clear_lru_cache() -> None:
            """Nothing to clear."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system looks for
            raise AttributeError(name)
        if name == "config":  # torch reads it where layers are recomputed
            return importlib.import_module(f"{_NAME}.{name}")
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
            torch._dynamo = importlib.import_module(_NAME)
        return getattr(sys.modules[_NAME], name)


def keep_compiler_out() -> None:
    """Puts the stand-in in place, unless the compiler has been imported already."""
    if _NAME in sys.modules:
        return
    found = importlib.util.find_spec(_NAME)
    assert found is not None
    assert found.submodule_search_locations is not None
    stand_in = _StandIn(list(found.submodule_search_locations))
    sys.modules[_NAME] = stand_in
    torch._dynamo = stand_in
