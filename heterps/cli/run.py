"""Options of `heterps run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.options import Json, Seed


def run(
    plan: Annotated[Path, typer.Argument(help="A plan file, from `heterps place -o`.")],
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Optimizer steps, from the beginning of training.")
    ] = 10,
    model: Annotated[
        str | None, typer.Option("--model", help="MODEL, where the plan's own reference moved.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", "-c", help="Cluster, where the plan's own moved.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Also train in one process; print the largest difference."),
    ] = False,
    online: Annotated[
        bool,
        typer.Option("--online", help="Correct the profile, fine-tune, re-place while running."),
    ] = False,
    slow: Annotated[
        list[str] | None,
        typer.Option(
            "--slow",
            help="DEVICE=FACTOR@STEP, or 'A->B=FACTOR@STEP' for a link: make an emulated device or "
            "link slower from a step on.",
        ),
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", help="Policy that --online fine-tunes.")
    ] = "generalist",
    fine_tune_s: Annotated[
        float, typer.Option("--fine-tune-seconds", min=0, help="Of each --online fine-tuning.")
    ] = 15.0,
    horizon: Annotated[
        int | None,
        typer.Option(
            "--horizon",
            min=1,
            help="With --online: a new plan must pay for its move within so many steps; by default "
            "within the remaining ones.",
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="By default the optimizer's usual one.")
    ] = None,
    max_gradient_norm: Annotated[
        float | None,
        typer.Option("--max-gradient-norm", help="Clip gradients to it, over the whole model."),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Rendezvous port; by default the system chooses.")
    ] = None,
    run_directory: Annotated[
        Path, typer.Option("--run-directory", help="Logs, measurements, plans.")
    ] = Path("runs/run"),
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
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Folder to save checkpoints in.")
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option("--checkpoint-every", min=1, help="Steps between two; else the last only."),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="Newest checkpoints to keep; 2 by default.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint, under any plan.")
    ] = False,
    remote: Annotated[
        str | None,
        typer.Option("--remote", help="URL (fsspec) of a folder that gets copies of checkpoints."),
    ] = None,
    elastic: Annotated[
        bool,
        typer.Option("--elastic", help="Go on without devices that are lost; take in new ones."),
    ] = False,
    heartbeat: Annotated[
        float | None,
        typer.Option(
            "--heartbeat",
            help="Seconds without a sign of life after which a device is lost; 1.5 by default.",
        ),
    ] = None,
    tolerate: Annotated[
        int | None,
        typer.Option(
            "--tolerate", min=0, help="Devices whose loss at one time has plans ready; 1."
        ),
    ] = None,
    lose: Annotated[
        list[str] | None,
        typer.Option("--lose", help="DEVICE@STEP: kill a device's process after so many steps."),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="DEVICE@STEP: stop a device's process, as if it hung."),
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option("--join", help="DEVICE@STEP: a device comes (back)."),
    ] = None,
    events: Annotated[
        Path | None,
        typer.Option("--events", help="FILE.csv: live through a spot trace (docs/spot-traces.md)."),
    ] = None,
    compress: Annotated[
        float | None,
        typer.Option("--compress", help="Seconds of that trace that pass in one second; 1."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option("--weights", help="Start from a folder of *.safetensors.")
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
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="heterps, or torch: torch.distributed.pipelining's own schedules, for plans that "
            "they can express.",
        ),
    ] = "heterps",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Execute a plan; predicted against measured."""
    from heterps.commands.elastic import elastic_options
    from heterps.commands.run import checkpoint_settings, run_run
    from heterps_runtime.specification.hosts import Hosts

    run_run(
        plan,
        steps=steps,
        model=model,
        cluster=cluster,
        verify=verify,
        online=online,
        slow=slow or [],
        policy=policy,
        fine_tune_s=fine_tune_s,
        horizon=horizon,
        learning_rate=learning_rate,
        max_gradient_norm=max_gradient_norm,
        port=port,
        run_directory=run_directory,
        trace=trace,
        tensorboard=tensorboard,
        seed=seed,
        as_json=as_json,
        checkpoint=checkpoint_settings(checkpoint, checkpoint_every, keep, remote),
        resume=resume,
        weights=weights,
        engine=engine,
        hosts=Hosts.parse(nodes, node_rank, rendezvous),
        elastic=elastic_options(
            elastic,
            heartbeat_s=heartbeat,
            tolerated=tolerate,
            lose=lose or (),
            stop=stop or (),
            join=join or (),
            spot_trace=events,
            compress=compress,
        ),
    )
