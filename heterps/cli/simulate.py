"""Options of `heterps simulate` and `heterps spot-trace`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.completion import names_of
from heterps.cli.options import (
    OUTPUT,
    Json,
    MovedCluster,
    MovedModel,
    Seed,
    above_zero,
    at_least_zero,
    finite,
)

ClusterArgument = Annotated[
    str,
    typer.Argument(
        help="Shipped name (`heterps list clusters`) or cluster file.",
        autocompletion=names_of("clusters"),
    ),
]
SPOT = "With a spot trace"
LOSSES = "Losses and returns"
PRICES = "Prices"


def simulate(
    plan: Annotated[Path, typer.Argument(help="A plan file.")],
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="FILE.json: Chrome trace to write (opens in Perfetto). FILE.csv: spot trace to "
            "read; its losses and prices are replayed (docs/spot-traces.md).",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure", help="Timeline, or the replay, as PNG or SVG.", rich_help_panel=OUTPUT
        ),
    ] = None,
    memory_figure: Annotated[
        Path | None,
        typer.Option(
            "--memory-figure", help="Memory of each device as PNG or SVG.", rich_help_panel=OUTPUT
        ),
    ] = None,
    certify: Annotated[
        bool,
        typer.Option(
            "--certify",
            help="Re-check the plan and its bound without the planners' code (seconds); exit code "
            "1 where a claim does not hold.",
        ),
    ] = False,
    model: MovedModel = None,
    cluster: MovedCluster = None,
    detection_s: Annotated[
        float | None,
        typer.Option(
            "--detection-seconds",
            callback=finite,
            help=f"{SPOT}: until a loss is known; 1.5 by default.",
            rich_help_panel=SPOT,
        ),
    ] = None,
    restart_s: Annotated[
        float | None,
        typer.Option(
            "--restart-seconds",
            callback=finite,
            help=f"{SPOT}: of all processes, as torchrun's; 9 by default.",
            rich_help_panel=SPOT,
        ),
    ] = None,
    planning_s: Annotated[
        float | None,
        typer.Option(
            "--planning-seconds",
            callback=finite,
            help=f"{SPOT}: where no plan was made before; 0.5 by default.",
            rich_help_panel=SPOT,
        ),
    ] = None,
    storage_bytes_per_s: Annotated[
        float | None,
        typer.Option(
            "--storage-bandwidth",
            callback=finite,
            help=f"{SPOT}: bytes/s of storage to a node; 1e9 by default.",
            rich_help_panel=SPOT,
        ),
    ] = None,
    checkpoint_every_s: Annotated[
        float | None,
        typer.Option(
            "--checkpoint-seconds",
            callback=finite,
            help=f"{SPOT}: between two checkpoints; 600 by default.",
            rich_help_panel=SPOT,
        ),
    ] = None,
    horizon_s: Annotated[
        float | None,
        typer.Option(
            "--horizon-seconds",
            callback=finite,
            help=f"{SPOT}: changes must pay back within this time; 1800 by default.",
            rich_help_panel=SPOT,
        ),
    ] = None,
    tolerated: Annotated[
        int | None,
        typer.Option(
            "--tolerate",
            min=0,
            help=f"{SPOT}: losses with a plan made before; 1 by default.",
            rich_help_panel=SPOT,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate a plan: step time, timeline, memory by kind; or its life on spot devices."""
    from heterps.commands.simulate import SimulateFiles, run_simulate

    run_simulate(
        plan,
        SimulateFiles(trace, figure, memory_figure),
        certify=certify,
        model=model,
        cluster=cluster,
        spot={
            "detection_s": detection_s,
            "restart_s": restart_s,
            "planning_s": planning_s,
            "storage_bytes_per_s": storage_bytes_per_s,
            "checkpoint_every_s": checkpoint_every_s,
            "horizon_s": horizon_s,
        },
        tolerated=tolerated,
        as_json=as_json,
    )


def spot_trace(
    cluster: ClusterArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write this file; else to stdout.", rich_help_panel=OUTPUT
        ),
    ] = None,
    hours: Annotated[
        float,
        typer.Option(
            "--hours", callback=above_zero, help="Length of the trace.", rich_help_panel=OUTPUT
        ),
    ] = 24.0,
    interruptions: Annotated[
        float,
        typer.Option(
            "--interruptions",
            callback=at_least_zero,
            help="Of one device per hour that it is there.",
            rich_help_panel=LOSSES,
        ),
    ] = 0.1,
    absence_minutes: Annotated[
        float,
        typer.Option(
            "--absence-minutes",
            callback=above_zero,
            help="Until it is back, on average.",
            rich_help_panel=LOSSES,
        ),
    ] = 30.0,
    rates: Annotated[
        list[str] | None,
        typer.Option(
            "--rate",
            help="TYPE=INTERRUPTIONS or TYPE=INTERRUPTIONS:MINUTES of a device type; repeat for "
            "several.",
            rich_help_panel=LOSSES,
        ),
    ] = None,
    node_interruptions: Annotated[
        float,
        typer.Option(
            "--node-interruptions",
            callback=at_least_zero,
            help="Of one whole node per hour.",
            rich_help_panel=LOSSES,
        ),
    ] = 0.02,
    node_absence_minutes: Annotated[
        float,
        typer.Option(
            "--node-absence-minutes",
            callback=above_zero,
            help="Until it is back, on average.",
            rich_help_panel=LOSSES,
        ),
    ] = 60.0,
    price_spread: Annotated[
        float,
        typer.Option(
            "--price-spread",
            callback=at_least_zero,
            help="Of one change of a price; 0 keeps the cluster's.",
            rich_help_panel=PRICES,
        ),
    ] = 0.03,
    price_minutes: Annotated[
        float,
        typer.Option(
            "--price-minutes",
            callback=above_zero,
            help="Between two changes of prices.",
            rich_help_panel=PRICES,
        ),
    ] = 60.0,
    seed: Seed = 0,
) -> None:
    """Draw a spot trace: made-up losses, returns and prices of a cluster's devices, as CSV."""
    from heterps.commands.spot import LossRates, PriceChanges, run_spot_trace

    losses = LossRates(
        (interruptions, absence_minutes), (node_interruptions, node_absence_minutes), rates or ()
    )
    prices = PriceChanges(price_spread, price_minutes)
    run_spot_trace(cluster, losses, prices, hours=hours, seed=seed, output=output)
