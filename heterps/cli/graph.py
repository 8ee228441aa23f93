"""The command about graphs: `heterps place-graph`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.options import (
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


@graphs.command(name="place-graph")
def place_graph(
    graph: Annotated[
        str,
        typer.Argument(
            help="With --cluster a model; else an operator graph, a dnn-partitioning workload "
            "(.json) or a PipeDream profile (.txt).",
            show_default=False,
        ),
    ],
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", help="Shipped name or cluster file.")
    ] = None,
    accelerators: Annotated[
        int | None, typer.Option("--accelerators", min=1, help="For PipeDream's profiles.")
    ] = None,
    effort: Annotated[str, typer.Option("--effort", help="fast, normal or high.")] = "normal",
    policy: Annotated[
        str | None, typer.Option("--policy", help="A trained policy for graphs: name or .npz file.")
    ] = None,
    job: JobFile = None,
    global_batch: GlobalBatch = None,
    dtype: DtypeOption = None,
    evaluations: Evaluations = None,
    seconds: Seconds = None,
    cpu_seconds: CpuSeconds = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the placement as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Place the layers or operators of a graph on concrete devices, one step at a time."""
    from heterps.commands.place_graph import run_place_graph

    run_place_graph(
        graph,
        cluster,
        accelerators=accelerators,
        job=job,
        job_options={"global_batch_size": global_batch, "dtype": dtype},
        policy=policy,
        effort=effort,
        evaluations=evaluations,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        seed=seed,
        output=output,
        as_json=as_json,
    )
