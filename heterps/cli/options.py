"""Options that several commands share, so that they are spelt and explained once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.completion import names_of, one_of
from heterps_configs.errors import HeterpsError


def finite(parameter: typer.CallbackParam, value: float | None) -> float | None:
    """Of an option that is a number: neither `nan` nor `inf`, which would mean no limit at all."""
    if value is not None and not math.isfinite(value):
        raise HeterpsError(f"{parameter.opts[0]} {value}: expected a finite number")
    return value


def above_zero(parameter: typer.CallbackParam, value: float) -> float:
    """Of an option that is a finite number above 0."""
    if not 0 < value < math.inf:
        raise HeterpsError(f"{parameter.opts[0]} {value:g}: expected a finite number above 0")
    return value


def at_least_zero(parameter: typer.CallbackParam, value: float) -> float:
    """Of an option that is a finite number, 0 or more."""
    if not 0 <= value < math.inf:
        raise HeterpsError(f"{parameter.opts[0]} {value:g}: expected a finite number, 0 or more")
    return value


# Groups of options in the help of commands.
PROBLEM = "What is placed"
PLANNING = "How it is planned"
OUTPUT = "Output"
MOVED = "Where the plan's references moved"
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble")
DTYPES = ("float32", "tf32", "float16", "bfloat16", "mixed-bfloat16")
OPTIMIZERS = ("adamw", "sgd", "sgd-momentum")
OBJECTIVES = ("throughput", "price")
RECOMPUTE = ("never", "full", "auto")
SHARD_STATE = OFFLOAD = ("never", "auto")
EFFORTS = ("fast", "normal", "high")

Model = Annotated[
    str,
    typer.Argument(
        help="Shipped name (`heterps list models`), profile file, Hugging Face config, or "
        "package.module:factory.",
        show_default=False,
        autocompletion=names_of("models"),
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        "-c",
        help="Shipped name (`heterps list clusters`) or cluster file.",
        show_default=False,
        autocompletion=names_of("clusters"),
        rich_help_panel=PROBLEM,
    ),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="name=shape:dtype of an input, such as x=3x32x32:float32; a factory needs them all.",
        rich_help_panel=PROBLEM,
    ),
]
SequenceLength = Annotated[
    int | None,
    typer.Option(
        "--sequence-length",
        min=1,
        help="Tokens of a sample (language models).",
        rich_help_panel=PROBLEM,
    ),
]
JobFile = Annotated[
    str | None,
    typer.Option(
        "--job",
        help="Job file; the options of its fields override it.",
        autocompletion=names_of("jobs"),
        rich_help_panel=PROBLEM,
    ),
]
GlobalBatch = Annotated[
    int | None,
    typer.Option("--global-batch", help="Samples of one step.", rich_help_panel=PROBLEM),
]
ChosenMicroBatch = Annotated[
    str | None,
    typer.Option(
        "--micro-batch",
        help="Samples of one micro-batch; auto, the default unless the job file names a size: "
        "powers of two and divisors are tried.",
        rich_help_panel=PROBLEM,
    ),
]
TensorParallel = Annotated[
    str | None,
    typer.Option(
        "--tensor-parallel",
        help="Degrees that a planner may choose, such as 1 or 1,2,4; auto, the default: all "
        "powers of two in a node.",
        rich_help_panel=PLANNING,
    ),
]
RecomputeOption = Annotated[
    str | None,
    typer.Option(
        "--recompute",
        help="Whether stages compute activations again: never, full, or auto, where it pays (the "
        "default).",
        autocompletion=one_of(*RECOMPUTE),
        rich_help_panel=PLANNING,
    ),
]
OffloadOption = Annotated[
    str | None,
    typer.Option(
        "--offload",
        help="Whether stages keep activations in host memory: never (the default), or auto, where "
        "it pays.",
        autocompletion=one_of(*OFFLOAD),
        rich_help_panel=PLANNING,
    ),
]
ShardState = Annotated[
    str | None,
    typer.Option(
        "--shard-state",
        help="Whether replicas divide the optimizer state: never, or auto, where it pays (the "
        "default).",
        autocompletion=one_of(*SHARD_STATE),
        rich_help_panel=PLANNING,
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="float32, tf32 (float32 with products on tensor cores), float16, bfloat16, or "
        "mixed-bfloat16: float32 weights under autocast.",
        autocompletion=one_of(*DTYPES),
        rich_help_panel=PROBLEM,
    ),
]
OptimizerOption = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        help="adamw, sgd or sgd-momentum.",
        autocompletion=one_of(*OPTIMIZERS),
        rich_help_panel=PROBLEM,
    ),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="1f1b, gpipe, interleaved or zero-bubble.",
        autocompletion=one_of(*SCHEDULES),
        rich_help_panel=PROBLEM,
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="throughput or price.",
        autocompletion=one_of(*OBJECTIVES),
        rich_help_panel=PROBLEM,
    ),
]
MinThroughput = Annotated[
    float | None,
    typer.Option(
        "--min-throughput",
        callback=finite,
        help="Floor in samples per second.",
        rich_help_panel=PROBLEM,
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", min=0, help="Seed of everything random.", rich_help_panel=PLANNING),
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Run the code (package.module:factory) that a file names, unasked."
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print JSON instead of tables.", rich_help_panel=OUTPUT),
]
Evaluations = Annotated[
    int | None,
    typer.Option(
        "--evaluations", help="Placements that a planner may evaluate.", rich_help_panel=PLANNING
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        callback=finite,
        help="Seconds that a planner may take, without those in which code is loaded or compiled. "
        "The last eighth is for a proof; a plan that is proven may end it sooner.",
        rich_help_panel=PLANNING,
    ),
]
CpuSeconds = Annotated[
    float | None,
    typer.Option(
        "--cpu-seconds",
        callback=finite,
        help="The same in processor seconds.",
        rich_help_panel=PLANNING,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        help="Search in so many processes at the same time, each with these limits, and take the "
        "best plan: beside auto unlike searches, beside another one other seeds. Default: 1.",
        rich_help_panel=PLANNING,
    ),
]
Effort = Annotated[
    str | None,
    typer.Option(
        "--effort",
        help="fast, normal or high: how hard planners ppo and auto try.",
        autocompletion=one_of(*EFFORTS),
        rich_help_panel=PLANNING,
    ),
]
PolicyFile = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="Plan with the planner ppo and this policy: a name (`heterps list policies`) or a "
        ".npz file.",
        autocompletion=names_of("policies"),
        rich_help_panel=PLANNING,
    ),
]
FrontierFlag = Annotated[
    bool,
    typer.Option(
        "--frontier",
        help="Show every plan that is best for some price of time.",
        rich_help_panel=PLANNING,
    ),
]
FrontierFigure = Annotated[
    Path | None,
    typer.Option(
        "--figure", help="With --frontier: draw it as PNG or SVG.", rich_help_panel=OUTPUT
    ),
]
MovedModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="MODEL, where it moved.",
        autocompletion=names_of("models"),
        rich_help_panel=MOVED,
    ),
]
MovedCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-c",
        help="Where it moved.",
        autocompletion=names_of("clusters"),
        rich_help_panel=MOVED,
    ),
]
