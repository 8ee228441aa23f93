"""Numbers as people read them."""

from __future__ import annotations


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
