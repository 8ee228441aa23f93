"""Numbers and texts as people read them."""

from __future__ import annotations

import re

# Control characters, the two line separators of Unicode, and halves of characters.
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_CONTROL_IN_LINES = re.compile(f"(?![\n\t]){CONTROL.pattern}")


def escaped(text: str) -> str:
    """Text out of a file that may be shown: no character of it moves a cursor or sets a colour.

    Lines stay lines, and tabs tabs.
    """
    return _CONTROL_IN_LINES.sub(lambda found: ascii(found[0])[1:-1], text)


def bytes_text(num_bytes: float) -> str:
    """Bytes for people: 1.5 GiB."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{_three_digits(value)} {unit}"
        value /= 1024
    return f"{_three_digits(value)} GiB"


def _three_digits(value: float) -> str:
    # Of 1,000 and more, `g` would make a power of ten.
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e9 else f"{value:.3g}"
