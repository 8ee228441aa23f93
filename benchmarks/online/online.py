"""Online: clusters drift and break. What is learned, moved and recovered, beside what is asked.

    python benchmarks/online/online.py --quick
    python benchmarks/online/online.py --only drift --json online.json
    python benchmarks/online/online.py --markdown docs/results/online.md

Sections: `drift`, `real_drift` and `fine_tuning` measure what is learned from a run whose devices
are not as believed, `regrouping` what becomes of groups with a slow device. With --json, finished
rows are kept beside that file, and an interrupted section goes on after them; sections that the
file has from earlier runs stay in it and in the Markdown. Sections that take longer than a coffee
run only where --only names them.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.online.section import Section, SectionResult, plain
from benchmarks.shared.common import parse_options
from benchmarks.shared.row_store import Settings
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError, UnknownNameError

# NumPy's libraries read these when they are loaded, which is when a section is.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# In the order in which they are shown. Each is a module of this folder or of `recovery`.
SECTIONS = (
    "monitor",
    "moves",
    "drift",
    "fine_tuning",
    "real_drift",
    "regrouping",
    "fixtures",
    "replanning",
    "state",
    "spot",
)
# Only where --only names them.
LONG_SECTIONS: tuple[str, ...] = ("recovery", "injections")
ABOUT_RECOVERY = ("fixtures", "replanning", "state", "spot", *LONG_SECTIONS)


def main() -> None:
    """Runs the sections and writes what was asked for."""
    options = parse_options(
        __doc__ or "",
        only=f"one section, or several with commas between: {', '.join(all_sections())}",
        markdown="write the tables to this file",
    )
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        run(options)
    except HeterpsError as error:
        sys.exit(f"error: {error}")


def all_sections() -> tuple[str, ...]:
    """Names that --only takes."""
    return (*SECTIONS, *LONG_SECTIONS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The entry of every wanted section by name; each is shown and written when it is done.

    Raises:
        UnknownNameError: There is no section of a wanted name.
        HeterpsError: A section could not be run; the others were.
    """
    from benchmarks.online.outputs import show

    wanted = options.only.split(",") if options.only else list(SECTIONS)
    for name in wanted:
        if name not in all_sections():
            raise UnknownNameError("section", name, all_sections())
    partial = options.json.with_suffix(".partial.jsonl") if options.json else None
    settings = Settings(options.quick, options.seed, partial)
    _earlier(options.json)  # a file that is something else is named before hours of work
    found: dict[str, Any] = {}
    failures: list[str] = []
    for name in wanted:
        room = "benchmarks.online.recovery" if name in ABOUT_RECOVERY else "benchmarks.online"
        section: Section = import_module(f"{room}.{name}")
        started_s = time.perf_counter()
        try:
            result = section.run(settings)
        except HeterpsError as error:  # the other sections may work nevertheless
            failures.append(f"{name}: {error}")
            continue
        seconds = time.perf_counter() - started_s
        found[name] = plain(section, result, seconds, _command(name, options))
        show(found[name])
        _write(found, result, options)
    if failures:
        raise HeterpsError("\n".join(failures))
    return found


def _command(section: str, options: argparse.Namespace) -> str:
    """How to make one section again."""
    words = ["python", "benchmarks/online/online.py", "--only", section]
    words += ["--quick"] if options.quick else []
    words += ["--seed", str(options.seed)] if options.seed else []
    return shlex.join(words)


def _earlier(path: Path | None) -> dict[str, Any]:
    """Entries of sections that an earlier run wrote."""
    if path is None or not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text()))
    except (json.JSONDecodeError, TypeError, ValueError):
        raise HeterpsError(f"--json: {path} exists and is no result of this benchmark") from None


def _write(found: dict[str, Any], result: SectionResult, options: argparse.Namespace) -> None:
    """Writes the files that were asked for: the finished sections, and those of earlier runs."""
    # Read again each time: another process may have written another section meanwhile.
    entries = {**_earlier(options.json), **found}
    if options.json:
        write_text(options.json, json.dumps(entries, indent=1) + "\n")
        if result.store is not None:
            result.store.remove()
    if options.markdown:
        from benchmarks.online.outputs import markdown

        names = [name for name in all_sections() if name in entries]
        write_text(Path(options.markdown), markdown({name: entries[name] for name in names}))


if __name__ == "__main__":
    main()
