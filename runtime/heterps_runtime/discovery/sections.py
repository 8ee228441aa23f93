"""What the script printed, by section; nothing of it is trusted."""

from __future__ import annotations

import re
from collections.abc import Mapping

from heterps_configs.errors import HeterpsError

_MARK = re.compile(r"@heterps ([a-z-]{1,40})")
# Longer whole numbers are none that a machine reports.
_WHOLE = re.compile(r"[0-9]{1,15}")
_LONGEST_TEXT = 100


def sections_of(text: str, host: str) -> Mapping[str, str]:
    """Text by name of section. What stands before the first is a banner, and left out.

    Args:
        text: What a host printed.
        host: What messages call it.

    Raises:
        HeterpsError: The end is missing.
    """
    found: dict[str, list[str]] = {}
    lines = [""]
    for line in text.split("\n"):
        mark = _MARK.fullmatch(line.rstrip("\r"))
        if mark is None:
            lines.append(line.rstrip("\r"))
        else:
            lines = found.setdefault(mark[1], [])
    if "end" not in found:
        raise HeterpsError(f"{host}: what it answered has no end; is its shell an ordinary one?")
    return {name: "\n".join(part).strip("\n") for name, part in found.items()}


def whole(text: str | None) -> int | None:
    """A whole number of at most 15 digits, above 0; None for all else, such as `[N/A]`."""
    text = (text or "").strip()
    return (int(text) or None) if _WHOLE.fullmatch(text) else None


def plain(text: str, longest: int = _LONGEST_TEXT) -> str:
    """A name or a remark as one short line of printable ASCII, which any comment may hold.

    Args:
        text: Of anybody.
        longest: In characters; the rest is cut off.
    """
    ascii_text = text.encode("ascii", errors="replace").decode()
    printable = "".join(letter if letter.isprintable() else " " for letter in ascii_text)
    return " ".join(printable.split())[:longest].strip()
