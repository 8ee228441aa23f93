"""Names of hosts as a user may give them: no name is an option of ssh, or a command."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from heterps_configs.documents.yaml_files import read_text
from heterps_configs.errors import HeterpsError

MOST_HOSTS = 256
# Asked without ssh.
THIS_MACHINE = "localhost"
_LONGEST = 255
_NAME = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9._-]*)@)?"
    r"(?:(?P<host>[A-Za-z0-9_:][A-Za-z0-9._:-]*)|\[(?P<address>[0-9A-Fa-f:.]+)\])"
)


def host_names(commas: str | None, file: Path | None) -> tuple[str, ...]:
    """The hosts that a user names; this machine where there are none.

    Args:
        commas: Names with commas between them.
        file: A name on each line; what follows `#` is a remark.

    Raises:
        HeterpsError: A name that no host can have, one that stands twice, or none at all.
    """
    if commas is None and file is None:
        return (THIS_MACHINE,)
    listed = [] if commas is None else commas.split(",")
    if file is not None:
        listed += [line.partition("#")[0] for line in read_text(file, str(file)).splitlines()]
    names = [name.strip() for name in listed if name.strip()]
    if not names:
        raise HeterpsError(f"{'--hosts' if file is None else file}: no host is named")
    if len(names) > MOST_HOSTS:
        raise HeterpsError(f"--hosts: {len(names)} hosts; at most {MOST_HOSTS}")
    check_host_names(names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise HeterpsError(f"--hosts: {', '.join(twice)} stands there twice")
    return tuple(names)


def check_host_names(names: Iterable[str]) -> None:
    """Lets names of hosts pass.

    Raises:
        HeterpsError: It could be taken for something else.
    """
    for name in names:
        if not _NAME.fullmatch(name) or len(name) > _LONGEST:
            raise HeterpsError(
                f"--hosts: {name[:_LONGEST]!r} is no name of a host; allowed: HOST or USER@HOST of "
                "letters, digits and . _ - :, an address in brackets, and no dash in front"
            )


def ssh_destination(name: str) -> str:
    """What ssh calls a host: addresses stand there without their brackets."""
    check_host_names([name])
    return name.replace("[", "").replace("]", "")
