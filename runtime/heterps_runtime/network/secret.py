"""The secret of a run on several hosts: who knows it may take part, nobody else."""

from __future__ import annotations

import os
import stat
import warnings
from pathlib import Path

from heterps_configs.errors import HeterpsError

VARIABLE = "HETERPS_SECRET"
OPTION = "--secret-file"
MIN_BYTES = 16
# More is a mistake: a path to something else.
MAX_BYTES = 4096
HOW_TO_MAKE_ONE = (
    "make one with `(umask 077; head -c 32 /dev/urandom | base64 > heterps-secret)`, copy that "
    f"file to every host, and give {OPTION} heterps-secret on each of them (or its content in the "
    f"variable {VARIABLE})"
)


def read_secret(file: Path | None) -> bytes:
    """The run's secret, from a file or else from the environment.

    Args:
        file: Of `--secret-file`; blanks around its content do not count.

    Raises:
        HeterpsError: There is none, it is too short, or others on this host may read the file.
    """
    from_environment = os.environ.get(VARIABLE)
    if file is not None:
        if from_environment is not None:
            warnings.warn(f"{VARIABLE} is ignored: {OPTION} is given", stacklevel=2)
        return _checked(_content(file), f"{OPTION} {file}")
    if not from_environment:
        raise HeterpsError(
            f"a run on several hosts needs a secret that all of them know: {HOW_TO_MAKE_ONE}"
        )
    return _checked(os.fsencode(from_environment), VARIABLE)


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & (stat.S_IROTH | stat.S_IWOTH):
                raise HeterpsError(
                    f"{OPTION} {file}: everybody on this host may read or change it; "
                    f"run: chmod 600 {file}"
                )
            if stat.S_ISREG(mode) and mode & (stat.S_IRGRP | stat.S_IWGRP):
                warnings.warn(f"{OPTION} {file}: its group may read it, too", stacklevel=3)
            return opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise HeterpsError(f"{OPTION} {file}: cannot be read: {error.strerror}") from None


def _checked(content: bytes, where: str) -> bytes:
    secret = content.strip()
    if len(secret) < MIN_BYTES:
        raise HeterpsError(
            f"{where}: {len(secret)} bytes are too few for a secret, at least {MIN_BYTES} are "
            f"needed, random ones; {HOW_TO_MAKE_ONE}"
        )
    if len(content) > MAX_BYTES:
        raise HeterpsError(f"{where}: more than {MAX_BYTES} bytes; is it another file?")
    return secret
