"""Options of `heterps profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.options import (
    DtypeOption,
    InputOption,
    Json,
    OptimizerOption,
    SequenceLength,
    TrustCode,
)


def profile(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Shipped name, profile file, Hugging Face config, or package.module:factory; "
            "with --merge several profile files; with --links none.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the profile (or cluster) here.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda:0: measure; without it only trace.")
    ] = None,
    device_type: Annotated[
        str | None, typer.Option("--device-type", help="Type that the times are filed under.")
    ] = None,
    micro_batches: Annotated[
        str, typer.Option("--micro-batch", help="Sizes to measure, such as 1,2,4,8.")
    ] = "1,2,4",
    dtype: DtypeOption = None,
    optimizer: OptimizerOption = None,
    inputs: InputOption = None,
    sequence_length: SequenceLength = None,
    links: Annotated[
        bool, typer.Option("--links", help="Measure links and host times of this machine.")
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option("--cluster", "-c", help="With --links: fill in this cluster's copy."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=2, help="With --links: how many processes.")
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge profiles of one model into --output.")
    ] = False,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Trace a model and time its layers; write a model profile."""
    from heterps.commands.profile import check_arguments, run_merge, run_profile

    given = {"--device": device, "--device-type": device_type, "--dtype": dtype}
    check_arguments(models or [], given, links=links, merge=merge, cluster=cluster, count=processes)
    if links:
        from heterps.commands.links import run_links

        run_links(cluster, output=output, num_processes=processes, as_json=as_json)
    elif merge:
        run_merge(models or [], output=output, as_json=as_json)
    else:
        run_profile(
            (models or [""])[0],
            output=output,
            device=device,
            device_type=device_type,
            micro_batches=micro_batches,
            dtype=dtype,
            optimizer=optimizer,
            inputs=inputs or [],
            sequence_length=sequence_length,
            trusts_code=trust_code,
            as_json=as_json,
        )
