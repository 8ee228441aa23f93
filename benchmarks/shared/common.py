"""What benchmarks share: options, the machine's name, fair timing, a table and a JSON file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = Mapping[str, Any]

# Models whose layers follow each other: no skips over many layers, no towers, no experts.
PLAIN_FAMILIES = ("transformer", "cnn", "ctr", "rough")


def parse_options(description: str, **flags: str) -> argparse.Namespace:
    """Reads `--json PATH`, `--quick`, `--seed N` and the `flags` (name: help)."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write rows and summary to this file")
    parser.add_argument("--quick", action="store_true", help="a look in under two minutes")
    parser.add_argument("--seed", type=int, default=0, help="seed of all that is drawn")
    for name, text in flags.items():
        parser.add_argument(f"--{name.replace('_', '-')}", help=text)
    return parser.parse_args()


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def interleaved_medians(
    cases: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each case.

    The cases take turns, so that a slow moment of the machine falls on all of them; each runs once
    before, untimed. `clock=time.process_time` counts CPU seconds: for work of one thread, beside
    other load.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()
    for _ in range(repeats):
        for name, case in cases.items():
            start = clock()
            case()
            seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def report(
    title: str, rows: Sequence[Row], summary: Mapping[str, Any], options: argparse.Namespace
) -> None:
    """Prints the rows as a table and the summary below it; writes both where `--json` says."""
    table = Table(title=f"{title} ({machine()['machine']})")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns:
        is_text = all(isinstance(row.get(name, ""), str) for row in rows)
        table.add_column(name.replace("_", " "), justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(_shown(row.get(name, "")) for name in columns))
    console = Console()
    console.print(table)
    for name, value in summary.items():
        console.print(f"{name}: {_shown(value)}", highlight=False)
    if options.json:
        content = {"rows": list(rows), "summary": {**summary, **machine()}}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value)
