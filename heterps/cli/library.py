"""The commands about what is installed: `heterps list`, `doctor`, `copy`, `compile`, `schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.completion import one_of, shipped_files
from heterps.cli.examples import EXAMPLES
from heterps.cli.options import Json

LISTED = (
    "clusters", "models", "devices", "links", "policies", "efforts", "training", "settings",
    "events", "planners",
)  # fmt: skip

library = typer.Typer()


@library.command(name="list", epilog=EXAMPLES["list"])
def list_shipped(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="clusters, models, devices, links, policies, efforts, training, settings, "
            "events or planners.",
            autocompletion=one_of(*LISTED),
        ),
    ] = None,
    is_detailed: Annotated[
        bool,
        typer.Option("--detail", help="Of devices: peaks, links, dated price, sources."),
    ] = False,
    as_json: Json = False,
) -> None:
    """What is shipped: clusters, models, devices, links, policies, efforts, planners and more."""
    from heterps.commands.library import run_list

    run_list(kind, is_detailed=is_detailed, as_json=as_json)


@library.command(epilog=EXAMPLES["doctor"])
def doctor(as_json: Json = False) -> None:
    """What of this machine can be used, what is missing, and what to do; exit code 1: broken."""
    from heterps.commands.doctor import run_doctor

    run_doctor(as_json=as_json)


@library.command(epilog=EXAMPLES["copy"])
def copy(
    name: Annotated[
        str,
        typer.Argument(help="A shipped name, see `heterps list`.", autocompletion=shipped_files),
    ],
    destination: Annotated[Path, typer.Argument(help="Folder to copy it to.")] = Path("."),
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="Where two kinds share the name: clusters, models, devices, links, policies, "
            "efforts, training, settings or events.",
            autocompletion=one_of(*LISTED[:-1]),
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
) -> None:
    """Copy a shipped file, to edit the copy."""
    from heterps.commands.library import run_copy

    run_copy(name, destination, kind=kind, overwrite=overwrite)


@library.command(name="compile", epilog=EXAMPLES["compile"])
def compile_kernels() -> None:
    """Compile what the first use of a command would compile; once after installation."""
    from heterps.commands.compiling import run_compile

    run_compile()


@library.command(epilog=EXAMPLES["calibrate"])
def calibrate(
    workloads: Annotated[
        Path,
        typer.Option(
            help="Folder of published measurements: `cephalo/model_latencies.json`, "
            "`sailor/Planner/simulations/profiles_tmp.json`, or both."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the calibration to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Fit the layer times of cards to published measurements again, and say what changed."""
    from heterps.commands.calibrate import run_calibrate

    run_calibrate(workloads, output=output, as_json=as_json)


@library.command(epilog=EXAMPLES["schema"])
def schema(
    folder: Annotated[Path, typer.Argument(help="Folder for the JSON schema files.")],
) -> None:
    """Write the JSON schema of every document, for editors."""
    from heterps.commands.library import run_schema

    run_schema(folder)
