"""Asks for trust in the code that a document names, once for each content of its files.

Answers are kept in `heterps/trusted-code.json` of the user's configuration folder
(`XDG_CONFIG_HOME`, `~/.config`), which is read only where nobody else can write it.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from heterps_configs.documents.model.source import ModelSource
from heterps_runtime.models.trust import (
    Code,
    UntrustedCodeError,
    code_of,
    foreign_factory,
    is_shipped,
    trust,
)
from heterps_runtime.training.program_file import ProgramFile

_KEPT = TypeAdapter(dict[str, str])
_MOST_BYTES = 2**20


def ask_for_trust(
    source: ModelSource | None,
    what: str,
    *,
    is_trusted: bool,
    say: Callable[[str], None],
    ask: Callable[[str], str] | None = None,
) -> None:
    """Returns where the code of a model may run; nothing of it is imported before.

    Args:
        source: Of the model.
        what: The document, as a sentence begins: `plan.yaml: this plan`.
        is_trusted: The user has said so for this call.
        say: Shows a line.
        ask: Asks a question; None: on the terminal, where there is one.

    Raises:
        UntrustedCodeError: Nobody has said yes, or somebody no.
    """
    factory = foreign_factory(source)
    if factory is None:
        return
    code = code_of(factory)
    _ask(code, what, is_trusted=is_trusted, say=say, ask=ask)
    trust(factory)


def ask_for_program(
    reference: str | None,
    *,
    is_trusted: bool,
    say: Callable[[str], None],
    ask: Callable[[str], str] | None = None,
) -> None:
    """The same for a training program, which the command line or a settings file names.

    Args:
        reference: `FILE.py:FUNCTION` or `package.module:FUNCTION`; None for none.
        is_trusted: The user has said so for this call.
        say: Shows a line.
        ask: See `ask_for_trust`.

    Raises:
        UntrustedCodeError: See `ask_for_trust`.
        HeterpsError: There is no such file.
    """
    if reference is None:
        return
    found = ProgramFile.of(reference)
    if not is_trusted and not is_shipped(found.reference):
        code = Code(found.reference, found.reference.rpartition(":")[0], found.sha256)
        _ask(code, "settings: this file", is_trusted=False, say=say, ask=ask)
    found.agree()


def _ask(
    code: Code,
    what: str,
    *,
    is_trusted: bool,
    say: Callable[[str], None],
    ask: Callable[[str], str] | None,
) -> None:
    """Returns where the answer is yes; keeps it."""
    shown = f"{what} runs {code.factory} ({code.file}, sha256 {code.fingerprint[:16]})"
    if is_trusted or _kept(say).get(_key(code)) == code.fingerprint:
        say(f"{shown}, which is trusted")
        return
    if ask is None:
        ask = input if sys.stdin.isatty() and sys.stderr.isatty() else None
    if ask is None:
        raise UntrustedCodeError(
            f"{shown}, which is not trusted: --trust-code or trust_code=True runs it"
        )
    say(shown)
    try:
        answer = ask("trust this code, now and as long as it stays as it is? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise UntrustedCodeError(f"{what} was not run: {code.factory} is not trusted")
    _keep(code, say)


def trust_file() -> Path:
    """Where answers are kept."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".config"
    return folder / "heterps" / "trusted-code.json"


def _key(code: Code) -> str:
    return f"{code.factory} {code.file}"


def _kept(say: Callable[[str], None]) -> dict[str, str]:
    """Fingerprints of what is trusted; none where the file is not the user's alone."""
    path = trust_file()
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                say(f"{path}: others can write it; it is ignored")
                return {}
            return _KEPT.validate_json(file.read(_MOST_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as error:
        say(f"{path}: cannot be read; it is ignored ({type(error).__name__})")
        return {}


def _keep(code: Code, say: Callable[[str], None]) -> None:
    """Adds one; the file changes in one move, and nobody else can read it."""
    path = trust_file()
    content = _KEPT.dump_json({**_kept(lambda text: None), _key(code): code.fingerprint}, indent=2)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Made for the user alone (0600), and stays so.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        say(f"{path}: cannot be written ({error.strerror}); this answer is for this run alone")
