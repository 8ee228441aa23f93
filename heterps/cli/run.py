"""Options of `heterps run`: what a user types; all else is in run settings and run events."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.options import Json, TrustCode


def run(
    plan: Annotated[Path, typer.Argument(help="A plan file, from `heterps place -o`.")],
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, help="Optimizer steps, from the beginning of training; 10 by default."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="auto, cpu or cuda: where ranks compute; auto: GPUs on CUDA, if any."
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Also train in one process; print the largest difference."),
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Folder to save checkpoints in.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint, under any plan.")
    ] = False,
    online: Annotated[
        bool,
        typer.Option("--online", help="Correct the profile, fine-tune, re-place while running."),
    ] = False,
    elastic: Annotated[
        bool,
        typer.Option("--elastic", help="Go on without devices that are lost; take in new ones."),
    ] = False,
    settings: Annotated[
        str | None,
        typer.Option(
            "--settings",
            help="Run settings (YAML): learning rate, engine, heartbeats, ...; `heterps copy "
            "run-settings` writes them all.",
        ),
    ] = None,
    events: Annotated[
        list[str] | None,
        typer.Option(
            "--events",
            help="Run events (YAML): devices that are lost, join or get slow; or FILE.csv, a spot "
            "trace to live through. Repeat for several.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="FILE.json, .png, .svg or .pdf: a measured step beside the predicted one, as "
            "Chrome trace and as figure.",
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", help="Folder for TensorBoard: every step, as it comes."),
    ] = None,
    run_directory: Annotated[
        Path | None,
        typer.Option("--run-directory", help="Logs, measurements, plans; runs/run by default."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="MODEL, where the plan's own reference moved.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", help="Cluster, where the plan's own moved.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, help="Hosts; start the same command on each of them."),
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option("--node-rank", min=0, help="This host; 0 prints the results.")
    ] = None,
    rendezvous: Annotated[
        str | None, typer.Option("--rendezvous", help="HOST:PORT of host 0, where hosts meet.")
    ] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            help="With --nodes: file of the run's secret, the same on all hosts; HETERPS_SECRET by "
            "default.",
        ),
    ] = None,
    trust_code: TrustCode = False,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of everything random; 0 by default.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Execute a plan; predicted against measured."""
    from heterps.commands.run import run_run
    from heterps.commands.run_request import RunRequest, read_events, read_settings
    from heterps_runtime.specification.hosts import Hosts

    given = {
        "steps": steps, "seed": seed, "device": device, "verify": verify or None,
        "resume": resume or None, "run_directory": run_directory, "checkpoint": checkpoint,
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
            spot=spot,
            is_online=online,
            is_elastic=elastic,
            hosts=Hosts.parse(nodes, node_rank, rendezvous, secret_file),
            trace=trace,
            tensorboard=tensorboard,
            trusts_code=trust_code,
            as_json=as_json,
        )
    )
