"""Code that a document names runs only once somebody has said that it may.

`package.module:factory` in a plan's profile, or in any other file, is a wish of whoever wrote the
file. It is carried out where it is one of the examples that come with heterps, where the caller
named it (on the command line, in Python), or where the user trusts it: then what was trusted is the
content of the files that the import begins with, and another content is asked for again.

A rank trusts what the specification says that its launcher put down.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from heterps_configs.documents.model_profile import ModelSource
from heterps_configs.errors import HeterpsError

_SHIPPED = "heterps_runtime.examples."
_TRUSTED: set[str] = set()


class UntrustedCodeError(HeterpsError):
    """A document names code that nobody has said yes to."""


class Code(NamedTuple):
    """What a factory's import would run first.

    Attributes:
        factory: `package.module:factory`.
        file: Of the module; what the system calls it where it has none.
        fingerprint: SHA-256 of the module's file and of those of the packages that hold it.
    """

    factory: str
    file: str
    fingerprint: str


def trust(factory: str) -> None:
    """From here on this process may import it."""
    _TRUSTED.add(factory)


def trust_source(source: ModelSource | None) -> None:
    """The same for the code of a model, where it has any."""
    if source is not None and source.factory is not None:
        trust(source.factory)


def foreign_factory(source: ModelSource | None) -> str | None:
    """The code that a model would run, where nobody has said yes to it yet."""
    factory = None if source is None or source.kind != "factory" else source.factory
    return None if factory is None or is_trusted(factory) else factory


def is_trusted(factory: str) -> bool:
    """Whether this process may import it."""
    return factory in _TRUSTED or is_shipped(factory)


def is_shipped(factory: str) -> bool:
    """Whether it comes with heterps: a function of one of the examples."""
    module, _, name = factory.partition(":")
    example = module.removeprefix(_SHIPPED)
    return module != example and example.isidentifier() and name.isidentifier()


def check_trusted(factory: str) -> None:
    """Refuses to import what nobody has said yes to.

    Raises:
        UntrustedCodeError: Nobody has.
    """
    if not is_trusted(factory):
        raise UntrustedCodeError(
            f"a document names the code {factory}, which is not trusted: --trust-code or "
            "trust_code=True runs it"
        )


def code_of(factory: str) -> Code:
    """Finds the code of a factory; nothing is imported.

    Raises:
        HeterpsError: There is no such module.
    """
    module = factory.partition(":")[0]
    digest, file = hashlib.sha256(), ""
    path: Sequence[str] | None = None
    for depth in range(module.count(".") + 1):
        name = ".".join(module.split(".")[: depth + 1])
        found = _find(name, path)
        if found is None:
            raise HeterpsError(f"{factory}: there is no module {name}")
        file = found.origin or "a folder"
        content = Path(file).read_bytes() if found.has_location else b""
        digest.update(hashlib.sha256(f"{name}\0{file}\0".encode() + content).digest())
        path = found.submodule_search_locations
    return Code(factory, file, digest.hexdigest())


def _find(name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """As an import would, with the working directory as the last place."""
    for finder in sys.meta_path:
        try:
            found = finder.find_spec(name, path)
        except KeyError:
            # A folder without `__init__` asks for the package around it, which is not imported.
            folders = [Path(entry, name.rpartition(".")[2]) for entry in path or ()]
            found = importlib.machinery.ModuleSpec(name, None, is_package=True)
            found.submodule_search_locations = [str(each) for each in folders if each.is_dir()]
        if found is not None:
            return found
    if path is None:
        return importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
    return None
