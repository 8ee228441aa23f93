"""`heterps report`: a plan, a run or a comparison as one HTML page."""

from __future__ import annotations

from pathlib import Path

from heterps.html_report.page import write_report
from heterps.reports.console import remarks, say_when_compiling
from heterps_configs.outputs import try_outputs

SUFFIXES = (".html", ".htm")


def run_report(source: Path, output: Path, *, model: str | None, cluster: str | None) -> None:
    """Writes the page, and says where it is.

    Args:
        source: A plan file, a run directory, or what `heterps compare --json` printed.
        output: The page.
        model: Where the plan's model moved to.
        cluster: Where its cluster moved to.
    """
    try_outputs({"--output": (output, SUFFIXES)})
    say_when_compiling()
    write_report(source, output, model, cluster)
    remarks.print(f"report written to {output}")
