"""The command about graphs: `heterps place-graph`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.completion import names_of, one_of
from heterps.cli.examples import EXAMPLES
from heterps.cli.options import (
    EFFORTS,
    OUTPUT,
    PLANNING,
    PROBLEM,
    CpuSeconds,
    DtypeOption,
    Evaluations,
    GlobalBatch,
    JobFile,
    Json,
    Seconds,
    Seed,
)

graphs = typer.Typer()


@graphs.command(name="place-graph", epilog=EXAMPLES["place-graph"])
def place_graph(
    graph: Annotated[
        str,
        typer.Argument(
            help="With --cluster a model; else an operator graph, a dnn-partitioning workload "
            "(.json) or a PipeDream profile (.txt).",
            show_default=False,
            autocompletion=names_of("models"),
        ),
    ],
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            help="Shipped name (`heterps list clusters`) or cluster file.",
            autocompletion=names_of("clusters"),
            rich_help_panel=PROBLEM,
        ),
    ] = None,
    accelerators: Annotated[
        int | None,
        typer.Option(
            "--accelerators", min=1, help="For PipeDream's profiles.", rich_help_panel=PROBLEM
        ),
    ] = None,
    effort: Annotated[
        str,
        typer.Option(
            "--effort",
            help="fast, normal or high.",
            autocompletion=one_of(*EFFORTS),
            rich_help_panel=PLANNING,
        ),
    ] = "normal",
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="A trained policy for graphs: name (`heterps list policies`) or .npz file.",
            autocompletion=names_of("policies"),
            rich_help_panel=PLANNING,
        ),
    ] = None,
    job: JobFile = None,
    global_batch: GlobalBatch = None,
    dtype: DtypeOption = None,
    evaluations: Evaluations = None,
    seconds: Seconds = None,
    cpu_seconds: CpuSeconds = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the placement as JSON.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: Json = False,
) -> None:
    """Place the layers or operators of a graph on concrete devices, one step at a time."""
    from heterps.commands.place_graph import GraphRequest, run_place_graph
    from heterps.commands.requests import JobOptions, Limits

    options = JobOptions(global_batch_size=global_batch, dtype=dtype)
    run_place_graph(
        GraphRequest(graph, cluster, accelerators, job, options),
        Limits(evaluations, seconds, cpu_seconds),
        policy=policy,
        effort=effort,
        seed=seed,
        output=output,
        as_json=as_json,
    )
