"""Options of `heterps discover`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.options import OUTPUT, Json, finite

HOSTS = "Hosts"


def discover(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the cluster file here; without it, it is printed.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(
            "--hosts",
            help="Hosts to ask over ssh, such as a,b,user@c; localhost: this machine, without ssh. "
            "By default this machine alone.",
            rich_help_panel=HOSTS,
        ),
    ] = None,
    hosts_file: Annotated[
        Path | None,
        typer.Option("--hosts-file", help="The same, a host on each line.", rich_help_panel=HOSTS),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            callback=finite,
            min=1,
            help="How long a host may take to answer.",
            rich_help_panel=HOSTS,
        ),
    ] = 120.0,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the cluster.", rich_help_panel=OUTPUT),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace an existing file.", rich_help_panel=OUTPUT),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the cluster file of this machine, or of hosts over ssh: devices, memory, links."""
    from heterps.run_commands.discover import run_discover

    run_discover(
        output=output,
        hosts=hosts,
        hosts_file=hosts_file,
        time_limit_s=seconds,
        name=name,
        replaces=force,
        as_json=as_json,
    )
