"""The `heterps` command. Every verb loads its own libraries: `--help` and `place` stay quick."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
import typer.main

from heterps.cli.completion import planners
from heterps.cli.devices import BudgetUsd, Excluded, MaxDevices, Regions, offer_of
from heterps.cli.discover import discover
from heterps.cli.examples import EXAMPLES
from heterps.cli.export import export
from heterps.cli.graph import graphs
from heterps.cli.import_plan import import_plan
from heterps.cli.library import library
from heterps.cli.moved import RunCommand
from heterps.cli.options import (
    OUTPUT,
    PLANNING,
    ChosenMicroBatch,
    ClusterOption,
    CpuSeconds,
    DtypeOption,
    Effort,
    Evaluations,
    FrontierFigure,
    FrontierFlag,
    GlobalBatch,
    InputOption,
    JobFile,
    Json,
    MinThroughput,
    Model,
    ObjectiveOption,
    OffloadOption,
    OptimizerOption,
    PolicyFile,
    RecomputeOption,
    ScheduleOption,
    Seconds,
    Seed,
    SequenceLength,
    ShardState,
    TensorParallel,
    finite,
    problem_options,
)
from heterps.cli.policy import policies
from heterps.cli.profile import profile
from heterps.cli.report import report
from heterps.cli.run import run
from heterps.cli.simulate import simulate, spot_trace
from heterps.cli.train import train
from heterps_configs.errors import HeterpsError, NotEnoughDevicesError
from heterps_configs.units import escaped

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Decide which layer of a neural network runs on which device of a mixed cluster.",
)
app.add_typer(library)
app.add_typer(graphs)
app.add_typer(policies)

_settings = {"debug": False}


def _version(wanted: bool) -> None:
    if wanted:
        from heterps import __version__

        typer.echo(f"heterps {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options that stand before the command."""
    _settings["debug"] = debug


@app.command(epilog=EXAMPLES["place"])
def place(
    model: Model,
    cluster: ClusterOption,
    planner: Annotated[
        str | None,
        typer.Option(
            "--planner",
            "-p",
            help="auto (the default; with --policy ppo), exact, ppo, annealing, genetic, "
            "cross-entropy, greedy, random, ...: a planner or a system of `heterps list planners`.",
            autocompletion=planners,
            rich_help_panel=PLANNING,
        ),
    ] = None,
    objective: ObjectiveOption = None,
    min_throughput: MinThroughput = None,
    global_batch: GlobalBatch = None,
    micro_batch: ChosenMicroBatch = None,
    tensor_parallel: TensorParallel = None,
    recompute: RecomputeOption = None,
    shard_state: ShardState = None,
    offload: OffloadOption = None,
    dtype: DtypeOption = None,
    optimizer: OptimizerOption = None,
    schedule: ScheduleOption = None,
    job: JobFile = None,
    inputs: InputOption = None,
    sequence_length: SequenceLength = None,
    budget_usd_per_hour: BudgetUsd = None,
    max_devices: MaxDevices = None,
    region: Regions = None,
    exclude: Excluded = None,
    evaluations: Evaluations = None,
    seconds: Seconds = None,
    cpu_seconds: CpuSeconds = None,
    effort: Effort = None,
    policy: PolicyFile = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the plan to this file.", rich_help_panel=OUTPUT),
    ] = None,
    explains: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show what one other choice would cost for each stage: tensor parallel, recompute,"
            " offload, sharded state; why other sizes of micro-batches lost, and why devices idle.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    frontier: FrontierFlag = False,
    figure: FrontierFigure = None,
    as_json: Json = False,
) -> None:
    """Plan: print the estimate, the bound and the table of stages."""
    from heterps.planning.strategies import micro_batch_size, strategy_of

    chosen = (tensor_parallel, recompute, shard_state, offload)
    strategy = strategy_of(*chosen, micro_batch, job_file=job)
    options = problem_options(
        job,
        inputs,
        sequence_length,
        objective,
        min_throughput,
        global_batch,
        micro_batch_size(micro_batch),
        dtype,
        optimizer,
        schedule,
    )
    offer = offer_of(budget_usd_per_hour, max_devices, region, exclude)
    if frontier:
        from heterps.commands.frontier import run_frontier

        if any(option is not None for option in (effort, cpu_seconds, policy)):
            warnings.warn(
                "--frontier is exact: --effort, --cpu-seconds and --policy are ignored",
                stacklevel=1,
            )
        if explains:
            raise HeterpsError(
                "--explain is about the stages of one plan, and --frontier has many: leave out one"
            )
        run_frontier(
            model, cluster, planner or "auto", {**options, "strategy": strategy},
            seconds=seconds, output=output, figure=figure, as_json=as_json, offer=offer,
        )  # fmt: skip
        return
    if figure is not None:
        raise HeterpsError("--figure draws the frontier: add --frontier")
    from heterps.commands.place import run_place

    run_place(
        model,
        cluster,
        planner,
        {**options, "strategy": strategy},
        is_strategy_asked=any(choice is not None for choice in chosen),
        explains=explains,
        offer=offer,
        evaluations=evaluations,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        effort=effort,
        policy=policy,
        seed=seed,
        output=output,
        as_json=as_json,
    )


@app.command(epilog=EXAMPLES["compare"])
def compare(
    model: Model,
    cluster: ClusterOption,
    chosen: Annotated[
        list[str] | None,
        typer.Option(
            "--planner",
            "--planners",
            "-p",
            help="Only these of `heterps list planners`, with commas or repeated; all: with the "
            "systems of papers; field: these systems beside auto, asymmetric and uniform-3d.",
            autocompletion=planners,
            rich_help_panel=PLANNING,
        ),
    ] = None,
    objective: ObjectiveOption = None,
    min_throughput: MinThroughput = None,
    global_batch: GlobalBatch = None,
    micro_batch: ChosenMicroBatch = None,
    tensor_parallel: TensorParallel = None,
    recompute: RecomputeOption = None,
    shard_state: ShardState = None,
    offload: OffloadOption = None,
    dtype: DtypeOption = None,
    optimizer: OptimizerOption = None,
    schedule: ScheduleOption = None,
    job: JobFile = None,
    inputs: InputOption = None,
    sequence_length: SequenceLength = None,
    evaluations: Annotated[
        int,
        typer.Option(
            "--evaluations",
            help="Placements that each planner may evaluate.",
            rich_help_panel=PLANNING,
        ),
    ] = 10_000,
    seconds: Seconds = None,
    cpu_seconds: CpuSeconds = None,
    with_all: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also planners that train a network, where that takes long.",
            rich_help_panel=PLANNING,
        ),
    ] = False,
    policy: PolicyFile = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for the plan file and the timeline of each planner, and for the table as "
            "JSON, CSV and HTML.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    log_directory: Annotated[
        Path, typer.Option("--logdir", help="TensorBoard folder.", rich_help_panel=OUTPUT)
    ] = Path("runs/compare"),
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard/--no-tensorboard",
            help="Write TensorBoard files.",
            rich_help_panel=OUTPUT,
        ),
    ] = True,
    figure: Annotated[
        Path | None,
        typer.Option(
            "--figure",
            help="Draw each planner's best cost over its CPU seconds as PNG or SVG.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """All planners on one problem at an equal budget: a table and TensorBoard."""
    from heterps.commands.compare import run_compare
    from heterps.planning.strategies import micro_batch_size, strategy_of

    strategy = strategy_of(
        tensor_parallel, recompute, shard_state, offload, micro_batch, job_file=job
    )
    options = problem_options(
        job,
        inputs,
        sequence_length,
        objective,
        min_throughput,
        global_batch,
        micro_batch_size(micro_batch),
        dtype,
        optimizer,
        schedule,
    )
    run_compare(
        model,
        cluster,
        chosen or [],
        {**options, "strategy": strategy},
        evaluations=evaluations,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        with_all=with_all,
        policy=policy,
        seed=seed,
        output=output,
        log_directory=log_directory if tensorboard else None,
        figure=figure,
        as_json=as_json,
    )


app.command(cls=RunCommand, epilog=EXAMPLES["run"])(run)


app.command(epilog=EXAMPLES["train"])(train)
app.command(epilog=EXAMPLES["discover"])(discover)
app.command(epilog=EXAMPLES["profile"])(profile)


app.command(epilog=EXAMPLES["simulate"])(simulate)
app.command(name="spot-trace", epilog=EXAMPLES["spot-trace"])(spot_trace)
app.command(epilog=EXAMPLES["export"])(export)
app.command(epilog=EXAMPLES["report"])(report)
app.command("import", epilog=EXAMPLES["import"])(import_plan)


@app.command(epilog=EXAMPLES["demo"])
def demo(
    run_directory: Annotated[
        Path, typer.Option("--run-directory", help="Everything the demo writes.")
    ] = Path("runs/demo"),
    train_s: Annotated[
        float,
        typer.Option("--train-seconds", callback=finite, min=1, help="Seconds of policy training."),
    ] = 60.0,
    seed: Seed = 0,
) -> None:
    """The whole loop on this machine: profile, train, place, compare, run, drift, adapt."""
    from heterps.run_commands.demo import run_demo

    run_demo(run_directory, train_s=train_s, seed=seed)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script.

    Args:
        arguments: The command line without the program's name; by default that of the process.

    Raises:
        SystemExit: 0 when all went well, 2 for what a user can mend, 3 for a run that lost too many
            devices, 1 for a defect of ours. Errors are one line on stderr; with `--debug` they keep
            their traceback.
    """
    # Of a warning, a user needs the text, and neither the file nor the line.
    warnings.formatwarning = lambda message, *where, **more: f"warning: {escaped(str(message))}\n"
    try:
        _command()(args=None if arguments is None else list(arguments), prog_name="heterps")
    except NotEnoughDevicesError as error:
        _fail(error, str(error), 3)
    except HeterpsError as error:
        _fail(error, str(error), 2)
    except BrokenPipeError:
        _end_quietly()
    except SystemExit as stop:
        # rich and click end the process by themselves where the reader has gone.
        if isinstance(stop.__context__, BrokenPipeError):
            _end_quietly()
        raise
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        text = (
            f"internal error: {type(error).__name__}: {error} (`heterps --debug ...` shows where)"
        )
        _fail(error, text, 1)


@cache
def _command() -> Callable[..., object]:
    """What parses command lines: built of the hints of all functions, once in a process."""
    return typer.main.get_command(app)


def _end_quietly() -> None:
    """The reader of our output (head, less) has gone; that is no error."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    # Of `heterps ... 2>&1 | head`.
    os.dup2(nothing, sys.stderr.fileno())
    sys.exit(0)


def _fail(error: Exception, text: str, code: int) -> None:
    if _settings["debug"]:
        raise error
    # Names out of files stand in messages; none of them moves a terminal's cursor.
    typer.echo(f"error: {escaped(' '.join(text.splitlines()))}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
