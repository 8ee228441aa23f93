"""Options of `heterps report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.options import MovedCluster, MovedModel


def report(
    source: Annotated[
        Path,
        typer.Argument(
            help="A plan file, a run directory, a folder of `heterps compare -o`, or a file that "
            "`heterps compare --json` printed."
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page to write: FILE.html.")
    ] = Path("report.html"),
    model: MovedModel = None,
    cluster: MovedCluster = None,
) -> None:
    """Write a page about a plan, a run or a comparison: one HTML file that needs no network."""
    from heterps.commands.report import run_report

    run_report(source, output, model=model, cluster=cluster)
