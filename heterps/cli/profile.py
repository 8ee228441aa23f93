"""Options of `heterps profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.completion import names_of, one_of
from heterps.cli.options import (
    OUTPUT,
    DtypeOption,
    InputOption,
    Json,
    OptimizerOption,
    SequenceLength,
    TrustCode,
)

MEASURED = "Times of layers"
LINKS = "Links"


def profile(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Shipped name, profile file, Hugging Face config, or package.module:factory; "
            "with --merge several profile files; with --links none.",
            autocompletion=names_of("models"),
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the profile (or cluster) here.", rich_help_panel=OUTPUT
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="cpu or cuda:0: measure; without it only trace.",
            autocompletion=one_of("cpu", "cuda:0"),
            rich_help_panel=MEASURED,
        ),
    ] = None,
    device_type: Annotated[
        str | None,
        typer.Option(
            "--device-type",
            help="Type that the times are filed under, see `heterps list devices`.",
            rich_help_panel=MEASURED,
        ),
    ] = None,
    micro_batches: Annotated[
        str,
        typer.Option(
            "--micro-batch", help="Sizes to measure, such as 1,2,4,8.", rich_help_panel=MEASURED
        ),
    ] = "1,2,4",
    dtype: DtypeOption = None,
    optimizer: OptimizerOption = None,
    inputs: InputOption = None,
    sequence_length: SequenceLength = None,
    links: Annotated[
        bool,
        typer.Option(
            "--links",
            help="Measure links, collectives and host times of this machine.",
            rich_help_panel=LINKS,
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            help="With --links: fill in this cluster's copy.",
            autocompletion=names_of("clusters"),
            rich_help_panel=LINKS,
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=2,
            help="With --links: how many processes.",
            rich_help_panel=LINKS,
        ),
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge",
            help="Merge profiles of one model into --output.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    explains_layers: Annotated[
        bool,
        typer.Option(
            "--explain-layers",
            help="Print every layer: what it is, keeps, sends, launches and multiplies, how groups "
            "can split it, and why modules were joined.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Trace a model and time its layers; write a model profile."""
    from heterps.run_commands.profile import (
        Measurements,
        ModelRequest,
        check_arguments,
        run_merge,
        run_profile,
    )

    given = {"--device": device, "--device-type": device_type, "--dtype": dtype}
    check_arguments(models or [], given, links=links, merge=merge, cluster=cluster, count=processes)
    if links:
        from heterps.run_commands.links import run_links

        run_links(cluster, output=output, num_processes=processes, as_json=as_json)
    elif merge:
        run_merge(models or [], output=output, as_json=as_json)
    else:
        run_profile(
            ModelRequest((models or [""])[0], inputs or (), sequence_length, dtype),
            Measurements(device, device_type, micro_batches, optimizer),
            output=output,
            trusts_code=trust_code,
            as_json=as_json,
            explains_layers=explains_layers,
        )
