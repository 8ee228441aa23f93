"""Where output goes: the answer to stdout, progress and remarks to stderr."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

answer = Console(soft_wrap=True, highlight=False)
remarks = Console(stderr=True, highlight=False)


def print_json(data: Any) -> None:
    """Prints one JSON document and nothing else."""
    print(json.dumps(data, indent=2, allow_nan=False))


def bytes_text(num_bytes: float) -> str:
    """Bytes for people: 1.5 GiB."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GiB"


def seconds_text(seconds: float) -> str:
    """Seconds for people: 3.2 ms."""
    if seconds >= 1 or seconds == 0:
        return f"{seconds:.4g} s"
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} us"
