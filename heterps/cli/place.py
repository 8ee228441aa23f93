"""Options of `heterps place` and `heterps compare`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from heterps.cli.completion import planners
from heterps.cli.devices import BudgetUsd, Excluded, MaxDevices, Regions, offer_of
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
    Processes,
    RecomputeOption,
    ScheduleOption,
    Seconds,
    Seed,
    SequenceLength,
    ShardState,
    TensorParallel,
)
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import HeterpsError

if TYPE_CHECKING:
    from heterps.commands.requests import ProblemRequest


@dataclass(frozen=True)
class ProblemOptions:
    """Options of both commands beside MODEL and cluster: the job, and what planners may choose."""

    objective: ObjectiveOption = None
    min_throughput: MinThroughput = None
    global_batch: GlobalBatch = None
    micro_batch: ChosenMicroBatch = None
    tensor_parallel: TensorParallel = None
    recompute: RecomputeOption = None
    shard_state: ShardState = None
    offload: OffloadOption = None
    dtype: DtypeOption = None
    optimizer: OptimizerOption = None
    schedule: ScheduleOption = None
    job: JobFile = None
    inputs: InputOption = None
    sequence_length: SequenceLength = None

    def request(self, model: str, cluster: str) -> ProblemRequest:
        """What is asked, as the commands want it."""
        from heterps.commands.requests import JobOptions, ProblemRequest, told_by_option
        from heterps.planning.strategies import micro_batch_size, strategy_of

        chosen = (self.tensor_parallel, self.recompute, self.shard_state, self.offload)
        with told_by_option(Strategy.model_fields):
            strategy = strategy_of(*chosen, self.micro_batch, job_file=self.job)
        return ProblemRequest(
            model,
            cluster,
            JobOptions(
                objective=self.objective,
                min_throughput_samples_per_s=self.min_throughput,
                global_batch_size=self.global_batch,
                micro_batch_size=micro_batch_size(self.micro_batch),
                dtype=self.dtype,
                optimizer=self.optimizer,
                schedule=self.schedule,
            ),
            job_file=self.job,
            inputs=tuple(self.inputs or ()),
            sequence_length=self.sequence_length,
            strategy=strategy,
            names_ways=any(choice is not None for choice in chosen),
        )


def spread_options(command: Callable[..., None]) -> Callable[..., None]:
    """Shows Typer the fields of `ProblemOptions`, one by one, where a command takes them as one."""
    hints = get_type_hints(ProblemOptions, include_extras=True)
    options = [
        Parameter(own.name, Parameter.KEYWORD_ONLY, default=own.default, annotation=hints[own.name])
        for own in fields(ProblemOptions)
    ]

    @wraps(command)
    def spread(**given: Any) -> None:
        asked = ProblemOptions(**{own.name: given.pop(own.name) for own in options})
        command(asked=asked, **given)

    shown: list[Parameter] = []
    for own in signature(command, eval_str=True).parameters.values():
        is_spread = own.name == "asked"
        shown += options if is_spread else [own.replace(kind=Parameter.KEYWORD_ONLY)]
    spread.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    spread.__annotations__ = {own.name: own.annotation for own in shown}
    return spread


@spread_options
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
    asked: ProblemOptions = ProblemOptions(),
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
    processes: Processes = None,
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
    from heterps.commands.requests import Limits, PlannerRequest

    problem = asked.request(model, cluster)
    offer = offer_of(budget_usd_per_hour, max_devices, region, exclude)
    if frontier:
        from heterps.commands.frontier import run_frontier

        ignored = {
            "--effort": effort, "--evaluations": evaluations, "--cpu-seconds": cpu_seconds,
            "--policy": policy, "--processes": processes, "--seed": seed or None,
        }  # fmt: skip
        given = [name for name, value in ignored.items() if value is not None]
        if given:
            text = f"--frontier is exact and takes --seconds alone; ignored: {', '.join(given)}"
            warnings.warn(text, stacklevel=1)
        if explains:
            raise HeterpsError(
                "--explain is about the stages of one plan, and --frontier has many: leave out one"
            )
        run_frontier(
            problem,
            "auto" if planner is None else planner,
            seconds=seconds,
            output=output,
            figure=figure,
            as_json=as_json,
            offer=offer,
        )
        return
    if figure is not None:
        raise HeterpsError("--figure draws the frontier: add --frontier")
    from heterps.commands.place import run_place

    run_place(
        problem,
        PlannerRequest(planner, policy, effort, seed, 1 if processes is None else processes),
        Limits(evaluations, seconds, cpu_seconds),
        output=output,
        as_json=as_json,
        explains=explains,
        offer=offer,
    )


@spread_options
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
    asked: ProblemOptions = ProblemOptions(),
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
        Path | None,
        typer.Option(
            "--logdir",
            help="TensorBoard folder; runs/compare by default.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
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
    from heterps.commands.compare import CompareFiles, run_compare
    from heterps.commands.requests import Limits

    run_compare(
        asked.request(model, cluster),
        chosen or [],
        Limits(evaluations, seconds, cpu_seconds),
        with_all=with_all,
        policy=policy,
        seed=seed,
        files=CompareFiles(output, _log_folder(log_directory, tensorboard), figure),
        as_json=as_json,
    )


def _log_folder(named: Path | None, is_wanted: bool) -> Path | None:
    if not is_wanted and named is not None:
        warnings.warn("--logdir is ignored with --no-tensorboard", stacklevel=2)
    return (named or Path("runs/compare")) if is_wanted else None
