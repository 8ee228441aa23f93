"""Runs that others measured and published: predicted step time and peak memory, beside peers.

    python benchmarks/fidelity.py --workloads FOLDER --only published

Nothing is fitted on the rows that are scored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heterps_configs.errors import HeterpsError


def rows(
    workloads: Path | None, quick: bool, seed: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row for each measured run; nothing is drawn.

    Raises:
        HeterpsError: There is no folder of published files.
    """
    del quick, seed
    if workloads is None:
        raise HeterpsError("name the folder of published files with --workloads")
    raise HeterpsError(f"{workloads}: holds no runs that are known")
