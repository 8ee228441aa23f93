"""Where a training program comes from: `train.py:make`, or `package.module:make`.

The file is code: a document may name it, and it runs only where somebody has said that it may
(`heterps_runtime.models.trust`). A run's specification holds the fingerprint of what was agreed to;
a rank that finds another content ends.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heterps_configs.documents.base import Document
from heterps_configs.errors import HeterpsError
from heterps_runtime.huggingface.library import one_line
from heterps_runtime.models.build import imported
from heterps_runtime.models.trust import UntrustedCodeError, check_trusted, code_of, trust
from heterps_runtime.training.program import TrainingProgram

_LOADED: dict[ProgramFile, TrainingProgram] = {}
_AGREED: dict[str, ProgramFile] = {}
_PLANNED = TrainingProgram()


class ProgramFile(Document):
    """The function that makes a training program.

    Attributes:
        reference: `/folder/train.py:make` or `package.module:make`.
        sha256: Of the file (of a module, see `heterps_runtime.models.trust.Code`).
    """

    reference: str
    sha256: str

    @classmethod
    def of(cls, reference: str) -> ProgramFile:
        """Finds the file; nothing is imported.

        Raises:
            HeterpsError: There is none, or the reference names no function.
        """
        place, _, function = reference.rpartition(":")
        if not place or not function.isidentifier():
            raise HeterpsError(
                f"program: {reference!r} names no function; expected FILE.py:FUNCTION or "
                "package.module:FUNCTION"
            )
        if not place.endswith(".py"):
            return cls(reference=reference, sha256=code_of(reference).fingerprint)
        path = Path(place).absolute()
        return cls(reference=f"{path}:{function}", sha256=_fingerprint(path))

    def agree(self) -> None:
        """From here on, this process and the workers that it starts may run it."""
        trust(self.reference)
        _AGREED[self.sha256] = self

    def check_agreed(self) -> ProgramFile:
        """This host's own file of the same content, where somebody has agreed to it.

        Raises:
            UntrustedCodeError: Nobody has.
        """
        found = _AGREED.get(self.sha256)
        if found is None:
            raise UntrustedCodeError(
                f"a document names the training program {self.reference}, which is not trusted: "
                f"--program {self.reference} or trust_code=True runs it"
            )
        return found

    def load(self) -> TrainingProgram:
        """Calls the function, once in a process.

        Raises:
            HeterpsError: The file has changed, cannot be imported, or makes something else.
        """
        if self not in _LOADED:
            check_trusted(self.reference)
            if ProgramFile.of(self.reference).sha256 != self.sha256:
                raise HeterpsError(f"{self.reference}: the file has changed since the run began")
            _LOADED[self] = _made(self.reference, _function(self.reference))
        return _LOADED[self]


def training_program(file: ProgramFile | None) -> TrainingProgram:
    """A run's program; where it has none, one that leaves everything to the plan."""
    return _PLANNED if file is None else file.load()


def _fingerprint(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise HeterpsError(f"program: {path} cannot be read: {error.strerror}") from None


def _function(reference: str) -> Callable[[], Any]:
    """Imports as `python train.py` would: files beside it can be imported, too."""
    place, _, name = reference.rpartition(":")
    if not place.endswith(".py"):
        return imported(reference)
    path = Path(place)
    module_name = path.stem if path.stem not in sys.modules else f"{path.stem}_program"
    specification = importlib.util.spec_from_file_location(module_name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module
    sys.path.insert(0, str(path.parent))
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        raise HeterpsError(f"{path}: cannot be imported: {one_line(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise HeterpsError(f"{path}: has no function {name}")
    found: Callable[[], Any] = function
    return found


def _made(reference: str, function: Callable[[], Any]) -> TrainingProgram:
    try:
        made = function()
    except HeterpsError:
        raise
    except Exception as error:
        raise HeterpsError(f"{reference} raised {one_line(error)}") from error
    if not isinstance(made, TrainingProgram):
        raise HeterpsError(
            f"{reference} returned {type(made).__name__}, expected a heterps.TrainingProgram"
        )
    return made
