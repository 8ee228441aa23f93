"""How well heterps predicts real runs: step time and peak memory, predicted against measured.

    python benchmarks/fidelity/fidelity.py --only own --quick
    python benchmarks/fidelity/fidelity.py --workloads FOLDER --json out.json

`own` trains on this machine and compares with the prediction made before each run; so does
`groups`, with tensor-parallel groups of emulated devices. `published` predicts runs that others
measured and published; FOLDER holds their files, one folder for each
source; without the option it is `$HETERPS_WORKLOADS`, and without either the section is skipped.
A section's `rows(workloads, quick, seed)` returns its rows and its summary; `shown(rows)`, where
there is one, returns those of the printed table. `own` and `groups` keep finished rows beside the
--json file and go on after them when they are started again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.shared.common import machine, parse_options, report
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError, UnknownNameError

SECTIONS = ("own", "groups", "published")
# Those that keep finished rows.
_RESUMED = ("own", "groups")


def main() -> None:
    """Runs the sections and prints their tables."""
    options = parse_options(
        __doc__ or "",
        workloads="folder of the published files (default: $HETERPS_WORKLOADS)",
        only=f"one section, or several with commas between: {', '.join(SECTIONS)}",
    )
    try:
        results = run(options)
    except HeterpsError as error:
        sys.exit(f"error: {error}")
    if options.json:
        write_text(options.json, json.dumps({**results, "machine": machine()}, indent=1) + "\n")
        for name in _RESUMED:
            if "rows" in results.get(name, {}):
                _partial_file(options.json, name).unlink(missing_ok=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Rows and summary of every wanted section, by name; one that lacks its files is skipped.

    Raises:
        UnknownNameError: There is no section of a wanted name.
        HeterpsError: The folder of published files does not exist.
    """
    wanted = options.only.split(",") if options.only else list(SECTIONS)
    for name in wanted:
        if name not in SECTIONS:
            raise UnknownNameError("section", name, SECTIONS)
    workloads = _workloads(options.workloads)
    results: dict[str, Any] = {}
    for name in wanted:
        section = import_module(f"benchmarks.fidelity.{name}")
        resume = {}
        if name in _RESUMED and options.json:
            resume["partial_file"] = _partial_file(options.json, name)
        try:
            rows, summary = section.rows(workloads, options.quick, options.seed, **resume)
        except HeterpsError as error:
            print(f"{name}: skipped: {error}")
            results[name] = {"skipped": str(error)}
            continue
        title = (section.__doc__ or name).splitlines()[0].rstrip(".:")
        table = section.shown(rows) if hasattr(section, "shown") else rows
        report(title, table, summary, argparse.Namespace(json=None))
        results[name] = {"rows": rows, "summary": summary}
    return results


def _partial_file(path: Path, section: str) -> Path:
    """Where the finished rows of a section are kept until all are written."""
    return path.with_suffix(f".{section}.partial.json")


def _workloads(option: str | None) -> Path | None:
    """The folder of published files; None where nobody named one."""
    name = option or os.environ.get("HETERPS_WORKLOADS")
    if not name:
        return None
    if not Path(name).is_dir():
        raise HeterpsError(f"--workloads: {name} is no folder")
    return Path(name)


if __name__ == "__main__":
    main()
