"""Ranks that carry out a line of Python."""

from __future__ import annotations

import os


def main(arguments: list[str]) -> int:
    """Executes its argument, which may use `rank`; the exit code."""
    exec(arguments[0], {"rank": int(os.environ["RANK"])})
    return 0
