"""Code that a document names runs only once somebody has said that it may.

`package.module:factory` in a plan's profile, or in any other file, is a wish of whoever wrote the
file. It is carried out where it is one of the examples that come with heterps, where the caller
named it (on the command line, in Python), or where the user trusts it: then what was trusted is the
content of the files that the import begins with, and another content is asked for again.

A rank trusts what the specification says that its launcher put down.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from heterps_configs.documents.model.source import ModelSource
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
    digest, file, content = hashlib.sha256(), "", b""
    places: Sequence[str] | None = None
    for depth in range(module.count(".") + 1):
        name = ".".join(module.split(".")[: depth + 1])
        found = _find(name, places)
        if found is None:
            raise HeterpsError(f"{factory}: there is no module {name}")
        file, places = found
        content = b"" if not Path(file).is_file() else Path(file).read_bytes()
        digest.update(hashlib.sha256(f"{name}\0{file}\0".encode() + content).digest())
    return Code(factory, file, digest.hexdigest())


def _find(name: str, places: Sequence[str] | None) -> tuple[str, Sequence[str]] | None:
    """File of a module, and where its own modules are; as an import would find it.

    Args:
        name: With the names of the packages that hold it.
        places: Of the package that holds it; None: the usual ones, and at last the working
            directory.
    """
    last = name.rpartition(".")[2]
    folders = [*sys.path, os.getcwd()] if places is None else places
    found: importlib.machinery.ModuleSpec | None = None
    for finder in sys.meta_path:
        # (Where a folder in a folder is no package, Python asks for the imported one around it.)
        with contextlib.suppress(KeyError):
            found = found or finder.find_spec(name, places)
    if found is None and places is None:
        found = importlib.machinery.PathFinder.find_spec(name, [os.getcwd()])
    if found is not None and found.origin is not None:
        return found.origin, list(found.submodule_search_locations or ())
    inner = [str(Path(folder or ".", last)) for folder in folders]
    inner = [folder for folder in inner if Path(folder).is_dir()]
    return (inner[0], inner) if inner else None
