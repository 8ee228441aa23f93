"""Spot traces, simulated: goodput of three ways to recover, over rates of losses and intervals.

python benchmarks/online/online.py --only spot
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from benchmarks.agent.section import Row, TableRows, progress_bar
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps.commands.spot import compare_strategies
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.spot.costs import SpotSettings
from heterps_envs.spot.generator import DEVICE_RATES, SpotDraw, SpotRates, draw_spot_trace

TITLE = "Spot traces, simulated"
# Nothing is asked for here but that it is shown.
TARGETS: list[Target] = []


class Fleet(NamedTuple):
    """A model on spot devices."""

    model: str
    cluster: str
    global_batch_size: int


FLEETS = (
    Fleet("bert-large", "spot-two-regions", 512),
    Fleet("gpt2", "a100-v100-t4", 256),
)
# Interruptions of a device per hour; seconds between two checkpoints.
RATES, INTERVALS_S = (0.1, 0.5), (60.0, 600.0)
HOURS, QUICK_HOURS = 8.0, 1.0
ASSUMED = SpotSettings()
NOTE = (
    "Made-up traces (`heterps spot-trace`): a device is away for 30 minutes on average, and whole "
    f"nodes are lost 0.02 times an hour. Assumed: detection {ASSUMED.detection_s:g} s, restart "
    f"{ASSUMED.restart_s:g} s, planning {ASSUMED.planning_s:g} s, a change in place "
    f"{ASSUMED.overhead_s:g} s, storage {ASSUMED.storage_bytes_per_s / 1e9:g} GB/s to a node "
    "(docs/spot-traces.md). `ceiling share` is goodput over that of a run with the best plan at "
    "every moment that loses no second; `lost_s` counts seconds of an hour that were not trained "
    "or were repeated. Restarts get the same planner as ours. Step times are simulated."
)


def run(settings: Settings) -> SectionResult:
    """Every fleet under every rate and interval."""
    hours = QUICK_HOURS if settings.quick else HOURS
    fleets = FLEETS[:1] if settings.quick else FLEETS
    store = settings.store("spot", hours=hours, fleets=list(map(list, fleets)))
    cases = list(product(fleets, RATES, INTERVALS_S))
    with progress_bar("spot", len(cases)) as advance:
        for fleet, rate, every_s in cases:
            key = f"{fleet.model} {rate:g} {every_s:g}"
            if key not in store:
                rows = _rows(fleet, rate, every_s, hours, settings.seed)
                store.add(key, {"rows": rows})
            advance(key)
    found = [store[f"{fleet.model} {rate:g} {every:g}"]["rows"] for fleet, rate, every in cases]
    table = TableRows(
        "spot",
        f"{hours:g} hours of losses and returns",
        NOTE,
        [row for rows in found for row in rows],
    )
    return SectionResult([table], _summary(found), store)


def _rows(fleet: Fleet, rate: float, every_s: float, hours: float, seed: int) -> list[Row]:
    """One row for each strategy."""
    problem, plan = _planned(fleet, seed)
    draw = SpotDraw(duration_s=hours * 3600, device=SpotRates(rate, DEVICE_RATES.mean_absence_s))
    trace = draw_spot_trace(problem.cluster, draw, seed)
    costs = SpotSettings(checkpoint_every_s=every_s)
    found = compare_strategies(problem, plan, trace, costs, tolerated=1)
    return [
        {
            "model": fleet.model,
            "losses_per_hour": rate,
            "checkpoint_s": every_s,
            "strategy": result.strategy,
            "changes": len(result.recoveries),
            "samples_per_s": result.goodput_samples_per_s,
            "ceiling share": found.share(result),
            "lost_s": sum(result.lost_s.values()) / hours,
            "usd_per_million": result.usd_per_million_samples,
        }
        for result in found.results
    ]


def _summary(found: Sequence[Sequence[Row]]) -> Row:
    """Of restart, templates and ours, in this order in every case."""
    rates = [[row["samples_per_s"] for row in rows] for rows in found]
    over_restart = [ours / restart for restart, _, ours in rates]
    return {
        "ours over restart, least": min(over_restart),
        "ours over restart, most": max(over_restart),
        "ours over templates, least": min(ours / templates for _, templates, ours in rates),
        "ours over templates, most": max(ours / templates for _, templates, ours in rates),
        "ceiling share of ours, least": min(rows[-1]["ceiling share"] for rows in found),
    }


def _planned(fleet: Fleet, seed: int) -> tuple[Problem, Plan]:
    problem = load_problem(
        fleet.model, fleet.cluster, global_batch_size=fleet.global_batch_size, strategy=Strategy()
    )
    return problem, place(problem, planner_named("auto", seed=seed)).plan
