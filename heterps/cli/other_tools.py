"""Options of `heterps export` and `heterps import`, which write and read what other tools run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.completion import one_of
from heterps.cli.options import (
    OUTPUT,
    PROBLEM,
    ClusterOption,
    DtypeOption,
    GlobalBatch,
    InputOption,
    JobFile,
    Json,
    Model,
    MovedCluster,
    MovedModel,
    OptimizerOption,
    ScheduleOption,
    SequenceLength,
    TrustCode,
)

SOURCES = ("accelerate", "megatron")
TARGETS = (
    "accelerate", "deepspeed", "megatron", "safetensors", "torch-pipelining", "torchtitan", "vllm",
)  # fmt: skip


def export(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    folder: Annotated[Path, typer.Argument(help="Where to write: a new or an empty folder.")],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            help="accelerate, deepspeed, megatron, torch-pipelining, torchtitan, vllm: the plan. "
            "safetensors: weights as from_pretrained reads them.",
            autocompletion=one_of(*TARGETS),
        ),
    ],
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            help="Of a run: whose weights are written; a folder of them: the newest.",
        ),
    ] = None,
    model: MovedModel = None,
    cluster: MovedCluster = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Write a plan, or what was trained under it, for another tool."""
    from heterps.commands.export import run_export

    run_export(
        plan,
        folder,
        target=target,
        checkpoint=checkpoint,
        model=model,
        cluster=cluster,
        trusts_code=trust_code,
        as_json=as_json,
    )


def import_plan(
    path: Annotated[
        Path,
        typer.Argument(help="A device_map in JSON, or Megatron's arguments as text."),
    ],
    model: Model,
    cluster: ClusterOption,
    source: Annotated[
        str,
        typer.Option("--from", help="accelerate or megatron.", autocompletion=one_of(*SOURCES)),
    ],
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            help="Names of devices in the order of its ranks, with commas between; by default the "
            "cluster's order.",
            rich_help_panel=PROBLEM,
        ),
    ] = None,
    global_batch: GlobalBatch = None,
    micro_batch: Annotated[
        int | None,
        typer.Option("--micro-batch", help="Samples of one micro-batch.", rich_help_panel=PROBLEM),
    ] = None,
    dtype: DtypeOption = None,
    optimizer: OptimizerOption = None,
    schedule: ScheduleOption = None,
    job: JobFile = None,
    inputs: InputOption = None,
    sequence_length: SequenceLength = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the plan to this file.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read a split that another tool runs, as a plan: to simulate it, compare it and report it."""
    from heterps.commands.import_plan import run_import
    from heterps.commands.requests import JobOptions, ProblemRequest
    from heterps.planning.strategies import OPEN

    options = JobOptions(
        global_batch_size=global_batch,
        micro_batch_size=micro_batch,
        dtype=dtype,
        optimizer=optimizer,
        schedule=schedule,
    )
    run_import(
        path,
        ProblemRequest(
            model,
            cluster,
            options,
            job_file=job,
            inputs=tuple(inputs or ()),
            sequence_length=sequence_length,
            # The bound is one of all plans with such micro-batches.
            strategy=OPEN.changed(chooses_micro_batch=False),
        ),
        source=source,
        devices=devices,
        output=output,
        as_json=as_json,
    )
