"""`heterps spot-trace`, and `heterps simulate PLAN --trace spot.csv`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from heterps.online.spot_strategies import FullPlans, strategies
from heterps.planning.plans import load_plan_and_problem
from heterps.reports.console import answer, print_json, remarks, say_when_compiling
from heterps.reports.figures import save_figure
from heterps.reports.spot_tables import SpotComparison, compared, spot_lines, spot_table
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster
from heterps_configs.outputs import try_outputs
from heterps_envs.problem import Problem
from heterps_envs.spot.availability import mean_available_devices, num_changes, spot_moments
from heterps_envs.spot.costs import SpotSettings
from heterps_envs.spot.generator import SpotDraw, SpotRates, draw_spot_trace
from heterps_envs.spot.replay import replay
from heterps_envs.spot.trace import SpotTrace, read_spot_trace, spot_trace_text, write_spot_trace

TOLERATED = 1


class LossRates(NamedTuple):
    """How often devices are lost: interruptions per hour, and minutes of absence.

    Attributes:
        device: Of one device.
        node: Of a whole node.
        types: TYPE=INTERRUPTIONS or TYPE=INTERRUPTIONS:MINUTES each, instead of `device`.
    """

    device: tuple[float, float]
    node: tuple[float, float]
    types: Sequence[str] = ()


class PriceChanges(NamedTuple):
    """How prices move: how far in one change, and minutes between two."""

    spread: float
    minutes: float


# Of `heterps simulate`, what becomes which field of `SpotSettings`.
_OPTIONS = {
    "detection_s": "--detection-seconds",
    "restart_s": "--restart-seconds",
    "planning_s": "--planning-seconds",
    "storage_bytes_per_s": "--storage-bandwidth",
    "checkpoint_every_s": "--checkpoint-seconds",
    "horizon_s": "--horizon-seconds",
}


def run_spot_trace(
    cluster: str,
    losses: LossRates,
    prices: PriceChanges,
    *,
    hours: float,
    seed: int,
    output: Path | None,
) -> None:
    """Draws a trace, and writes it to a file, or else to stdout.

    Args:
        cluster: Shipped name, or cluster file.
        losses: Of its devices.
        prices: Of its devices.
        hours: Length of the trace.
        seed: Of what is drawn.
        output: The file.
    """
    try_outputs({"--output": (output, (".csv",))})
    known = load_cluster(cluster)
    draw = SpotDraw(
        duration_s=hours * 3600,
        device=_rates(*losses.device),
        by_type=_rates_by_type(losses),
        node=_rates(*losses.node),
        price_spread=prices.spread,
        price_every_s=prices.minutes * 60,
    )
    trace = draw_spot_trace(known, draw, seed)
    comments = [
        f"Drawn by `heterps spot-trace` for the cluster {known.name}, seed {seed}. Made up: no",
        "provider's losses or prices.",
    ]
    if output is None:
        answer.file.write(spot_trace_text(trace, comments))
        answer.file.flush()
        return
    write_spot_trace(trace, output, comments)
    moments = spot_moments(trace, known)
    lost, returned = num_changes(moments)
    mean = mean_available_devices(moments, trace.duration_s)
    remarks.print(
        f"spot trace written to {output}: {hours:g} h, {lost} losses, {returned} returns, "
        f"{mean:.1f} of {len(known.devices)} devices on average"
    )


def _rates(interruptions_per_hour: float, absence_minutes: float) -> SpotRates:
    return SpotRates(interruptions_per_hour, absence_minutes * 60)


def _rates_by_type(losses: LossRates) -> dict[str, SpotRates]:
    found: dict[str, SpotRates] = {}
    for text in losses.types:
        name, rates = _type_rates(text, losses.device[1])
        if name in found:
            raise HeterpsError(f"--rate {text!r}: {name} has a rate already")
        found[name] = rates
    return found


def _type_rates(text: str, absence_minutes: float) -> tuple[str, SpotRates]:
    """TYPE=INTERRUPTIONS[:MINUTES]."""
    name, separator, values = text.partition("=")
    interruptions, colon, minutes = values.partition(":")
    try:
        rates = _rates(float(interruptions), float(minutes) if colon else absence_minutes)
        is_possible = 0 <= rates.interruptions_per_hour < math.inf
        if not (separator and is_possible and 0 < rates.mean_absence_s < math.inf):
            raise ValueError
        return name, rates
    except ValueError:
        raise HeterpsError(
            f"--rate {text!r}: expected TYPE=INTERRUPTIONS or TYPE=INTERRUPTIONS:MINUTES, both "
            "finite and MINUTES above 0, such as T4=0.3:20"
        ) from None


def run_spot_replay(
    plan_file: Path,
    trace_file: Path,
    *,
    figure: Path | None,
    model: str | None,
    cluster: str | None,
    options: Mapping[str, float | None],
    tolerated: int | None,
    as_json: bool,
) -> None:
    """Replays a spot trace for every strategy, and prints what came of it.

    `options` are fields of `SpotSettings`; None stands for the default.

    Raises:
        HeterpsError: A file is bad, or a number of an option, by its name.
    """
    say_when_compiling()
    trace = read_spot_trace(trace_file)
    plan, problem = load_plan_and_problem(plan_file, model, cluster)
    settings = _settings_of(options)
    found = compare_strategies(
        problem, plan, trace, settings, TOLERATED if tolerated is None else tolerated
    )
    if figure is not None:
        from heterps.reports.spot_figure import spot_figure

        save_figure(spot_figure(found, f"{plan.model} on {plan.cluster}"), figure)
        remarks.print(f"figure written to {figure}")
    if as_json:
        print_json({"settings": asdict(settings), **found.to_mapping()})
        return
    answer.print(spot_table(found))
    for line in spot_lines(found, settings):
        answer.print(line)


def _settings_of(options: Mapping[str, float | None]) -> SpotSettings:
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return SpotSettings(**given)
    except HeterpsError as error:
        name, _, what = str(error).partition(" ")
        raise HeterpsError(f"{_OPTIONS.get(name, name)} {what}") from None


def compare_strategies(
    problem: Problem, plan: Plan, trace: SpotTrace, settings: SpotSettings, tolerated: int
) -> SpotComparison:
    """What becomes of a run under each strategy.

    Raises:
        HeterpsError: The trace is of another cluster, or has no duration.
    """
    moments = spot_moments(trace, problem.cluster)
    if trace.duration_s <= 0:
        raise HeterpsError(f"{trace.source}: the trace ends at 0 s; a row `end` says when it does")
    if problem.job.objective == "price":
        warnings.warn(
            "plans are made at the cluster's prices; those of the trace are what is paid",
            stacklevel=2,
        )
    full = FullPlans(problem, plan)
    results = []
    chosen = strategies(full, settings, tolerated)
    with Progress(console=remarks, transient=True) as progress:
        task = progress.add_task("replaying", total=len(chosen))
        for strategy in chosen:
            results.append(replay(problem, moments, trace.duration_s, strategy, settings))
            progress.advance(task)
    return compared(problem, moments, full, results)
