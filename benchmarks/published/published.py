"""Published workloads: our results beside what their authors' programs reach on them.

    python benchmarks/published/published.py --workloads FOLDER
    python benchmarks/published/published.py --workloads FOLDER --only piper --json out.json

FOLDER holds the files as published, one folder for each source (`dnn-partitioning`, `pipedream`,
...); without the option it is `$HETERPS_WORKLOADS`. Each module beside this one is a table:
`rows(workloads, quick, seed)` returns its rows and its summary. Peers' numbers stand in those
modules; where they were run by others or on another machine, only results compare, not seconds.
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
from heterps_configs.errors import HeterpsError, UnknownNameError

SECTIONS = Path(__file__).parent


def main() -> None:
    """Runs the sections and prints their tables."""
    options = parse_options(
        __doc__ or "",
        workloads="folder of the published files (default: $HETERPS_WORKLOADS)",
        only="one section, or several with commas between",
    )
    try:
        results = run(options)
    except HeterpsError as error:
        sys.exit(f"error: {error}")
    if options.json:
        options.json.write_text(json.dumps({**results, "machine": machine()}, indent=1) + "\n")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Rows and summary of every wanted section, by name; a section without its files is skipped.

    Raises:
        HeterpsError: There is no folder, or no section of a wanted name.
    """
    folder = options.workloads or os.environ.get("HETERPS_WORKLOADS")
    if not folder or not Path(folder).is_dir():
        raise HeterpsError(f"--workloads: {folder or 'nothing'} is no folder")
    known = sorted(path.stem for path in SECTIONS.glob("*.py") if path.name != Path(__file__).name)
    wanted = options.only.split(",") if options.only else known
    for name in wanted:
        if name not in known:
            raise UnknownNameError("section", name, known)
    results: dict[str, Any] = {}
    for name in wanted:
        section = import_module(f"benchmarks.published.{name}")
        try:
            rows, summary = section.rows(Path(folder), options.quick, options.seed)
        except HeterpsError as error:
            print(f"{name}: skipped: {error}")
            results[name] = {"skipped": str(error)}
            continue
        title = (section.__doc__ or name).splitlines()[0].rstrip(".:")
        report(title, rows, summary, argparse.Namespace(json=None))
        results[name] = {"rows": rows, "summary": summary}
    return results


if __name__ == "__main__":
    main()
