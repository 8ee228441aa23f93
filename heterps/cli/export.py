"""Options of `heterps export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.options import Json, MovedCluster, MovedModel


def export(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    folder: Annotated[Path, typer.Argument(help="Where to write: a new or an empty folder.")],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            help="accelerate, deepspeed, megatron, torch-pipelining, torchtitan, vllm: the plan. "
            "safetensors: weights as from_pretrained reads them.",
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
        as_json=as_json,
    )
