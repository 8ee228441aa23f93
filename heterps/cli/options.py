"""Options that several commands share, so that they are spelt and explained once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from heterps_configs.errors import HeterpsError


def finite(parameter: typer.CallbackParam, value: float | None) -> float | None:
    """Of an option that is a number: neither `nan` nor `inf`, which would mean no limit at all."""
    if value is not None and not math.isfinite(value):
        raise HeterpsError(f"{parameter.opts[0]} {value}: expected a finite number")
    return value


Model = Annotated[
    str,
    typer.Argument(
        help="Shipped name, profile file, Hugging Face config, or package.module:factory.",
        show_default=False,
    ),
]
ClusterOption = Annotated[
    str, typer.Option("--cluster", "-c", help="Shipped name or cluster file.", show_default=False)
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="name=shape:dtype of an input, such as x=3x32x32:float32; a factory needs them all.",
    ),
]
SequenceLength = Annotated[
    int | None,
    typer.Option("--sequence-length", min=1, help="Tokens of a sample (language models)."),
]
JobFile = Annotated[str | None, typer.Option("--job", help="Job file; options below override it.")]
GlobalBatch = Annotated[int | None, typer.Option("--global-batch", help="Samples of one step.")]
MicroBatch = Annotated[
    int | None, typer.Option("--micro-batch", help="Samples of one micro-batch.")
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="float32, float16, bfloat16, or mixed-bfloat16: float32 weights under autocast.",
    ),
]
OptimizerOption = Annotated[
    str | None, typer.Option("--optimizer", help="adamw, sgd, sgd-momentum.")
]
ScheduleOption = Annotated[
    str | None, typer.Option("--schedule", help="1f1b, gpipe, interleaved or zero-bubble.")
]
ObjectiveOption = Annotated[str | None, typer.Option("--objective", help="throughput or price.")]
MinThroughput = Annotated[
    float | None,
    typer.Option("--min-throughput", callback=finite, help="Floor in samples per second."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random.")]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Run the code (package.module:factory) that a file names, unasked."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Evaluations = Annotated[
    int | None, typer.Option("--evaluations", help="Placements that a planner may evaluate.")
]
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", callback=finite, help="Seconds that a planner may take."),
]
CpuSeconds = Annotated[
    float | None,
    typer.Option(
        "--cpu-seconds", callback=finite, help="Processor seconds that a planner may take."
    ),
]
Effort = Annotated[
    str | None,
    typer.Option("--effort", help="fast, normal or high: how hard planners ppo and auto try."),
]
PolicyFile = Annotated[
    str | None,
    typer.Option("--policy", help="Planner ppo with this policy: a name or a .npz file."),
]
FrontierFlag = Annotated[
    bool,
    typer.Option("--frontier", help="Show every plan that is best for some price of time."),
]
FrontierFigure = Annotated[
    Path | None, typer.Option("--figure", help="Draw the frontier as PNG or SVG.")
]


def problem_options(
    job: str | None,
    inputs: list[str] | None,
    sequence_length: int | None,
    objective: str | None,
    min_throughput: float | None,
    global_batch: int | None,
    micro_batch: int | None,
    dtype: str | None,
    optimizer: str | None,
    schedule: str | None,
) -> dict[str, Any]:
    """Keyword arguments of `heterps.planning.problems.load_problem` from a command's options."""
    return {
        "job_file": job,
        "inputs": inputs or (),
        "sequence_length": sequence_length,
        "objective": objective,
        "min_throughput_samples_per_s": min_throughput,
        "global_batch_size": global_batch,
        "micro_batch_size": micro_batch,
        "dtype": dtype,
        "optimizer": optimizer,
        "schedule": schedule,
    }
