"""Options of `heterps run`: what a user types; all else is in run settings and run events."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.completion import names_of, one_of
from heterps.cli.options import OUTPUT, Json, TrustCode

TRAINING = "Training"
STATE = "Checkpoints"
CHANGES = "While it runs"
WHERE = "Where it runs"
PLANNED = "Where the plan's references moved"


def run(
    plan: Annotated[Path, typer.Argument(help="A plan file, from `heterps place -o`.")],
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            help="Optimizer steps, from the beginning of training; 10 by default.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            "--program",
            help="FILE.py:FUNCTION: your model, loss, optimizer and data; runs your code.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            help="auto, cpu or cuda: where ranks compute; auto: GPUs on CUDA, if any.",
            autocompletion=one_of("auto", "cpu", "cuda"),
            rich_help_panel=WHERE,
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Also train in one process; print the largest difference.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", help="Folder to save checkpoints in.", rich_help_panel=STATE),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the newest checkpoint, under any plan.",
            rich_help_panel=STATE,
        ),
    ] = False,
    online: Annotated[
        bool,
        typer.Option(
            "--online",
            help="Correct the profile, fine-tune, re-place while running.",
            rich_help_panel=CHANGES,
        ),
    ] = False,
    elastic: Annotated[
        bool,
        typer.Option(
            "--elastic",
            help="Go on without devices that are lost; take in new ones.",
            rich_help_panel=CHANGES,
        ),
    ] = False,
    settings: Annotated[
        str | None,
        typer.Option(
            "--settings",
            help="Run settings (YAML): learning rate, engine, heartbeats, ...; `heterps copy "
            "run-settings` writes them all.",
            autocompletion=names_of("settings"),
            rich_help_panel=TRAINING,
        ),
    ] = None,
    events: Annotated[
        list[str] | None,
        typer.Option(
            "--events",
            help="Run events (YAML): devices that are lost, join or get slow; or FILE.csv, a spot "
            "trace to live through. Repeat for several.",
            rich_help_panel=CHANGES,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="FILE.json, .png, .svg or .pdf: a measured step beside the predicted one, as "
            "Chrome trace and as figure.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            "--tensorboard",
            help="Folder for TensorBoard: every step, as it comes.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    run_directory: Annotated[
        Path | None,
        typer.Option(
            "--run-directory",
            help="Logs, measurements, plans; runs/run by default.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="MODEL, where the plan's own reference moved.",
            autocompletion=names_of("models"),
            rich_help_panel=PLANNED,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            help="Cluster, where the plan's own moved.",
            autocompletion=names_of("clusters"),
            rich_help_panel=PLANNED,
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=1,
            help="Hosts; start the same command on each of them.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    node_rank: Annotated[
        int | None,
        typer.Option(
            "--node-rank", min=0, help="This host; 0 prints the results.", rich_help_panel=WHERE
        ),
    ] = None,
    rendezvous: Annotated[
        str | None,
        typer.Option(
            "--rendezvous", help="HOST:PORT of host 0, where hosts meet.", rich_help_panel=WHERE
        ),
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            help="With --nodes: file of the run's secret, the same on all hosts; HETERPS_SECRET by "
            "default.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    trust_code: TrustCode = False,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            min=0,
            help="Seed of everything random; 0 by default.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Execute a plan; predicted against measured."""
    from heterps_runtime.process.quiet_torch import import_torch

    import_torch()  # before anything else does

    from heterps.run_commands.event_files import read_events
    from heterps.run_commands.run import run_run
    from heterps.run_commands.run_request import RunRequest, read_settings
    from heterps_runtime.specification.hosts import Hosts

    given = {
        "steps": steps, "seed": seed, "device": device, "verify": verify or None,
        "resume": resume or None, "run_directory": run_directory, "checkpoint": checkpoint,
        "program": program,
    }  # fmt: skip
    chosen = read_settings(settings, given)
    injected, spot = read_events(events or [], chosen)
    run_run(
        RunRequest(
            plan,
            chosen,
            model=model,
            cluster=cluster,
            events=injected,
            event_files=tuple(events or ()),
            spot=spot,
            is_online=online,
            is_elastic=elastic,
            hosts=Hosts.parse(nodes, node_rank, rendezvous, secret_file),
            trace=trace,
            tensorboard=tensorboard,
            trusts_code=trust_code,
            has_own_program=program is not None,
            as_json=as_json,
        )
    )
