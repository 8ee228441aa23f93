"""Spot traces, simulated: goodput of three ways to recover, over rates of losses and intervals.

python benchmarks/online.py --only spot
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from benchmarks.agent_sections.section import Row, TableRows, progress_bar
from benchmarks.online_sections.section import SectionResult, Settings, Target
from heterps.placing import place
from heterps.problems import load_problem
from heterps.spot_command import compare_strategies
from heterps_agents.registry import planner_named
from heterps_configs.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.spot_costs import SpotSettings
from heterps_envs.spot_generator import DEVICE_RATES, SpotDraw, SpotRates, draw_spot_trace

TITLE = "Spot traces, simulated"
OURS, TEMPLATES, RESTART = "ours", "templates", "restart"
TARGETS = [
    Target("ours over restart from storage, least of all traces", "least over restart", 1, True),
]


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
RATES, INTERVALS_S = (0.05, 0.5), (60.0, 600.0)
HOURS, QUICK_HOURS = 12.0, 2.0
NOTE = (
    "Made-up traces (`heterps spot-trace`): devices are away for 30 minutes on average, whole nodes "
    f"0.02 times an hour. Seconds that are assumed: {SpotSettings()}; only the interval between "
    "checkpoints varies. `share` is goodput over the ceiling, a run with the best plan at every "
    "moment that loses no second; `lost` are seconds that were not trained or were repeated, of "
    "an hour. Restarts get the same planner as ours. Step times are simulated."
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
                store.add(key, _row(fleet, rate, every_s, hours, settings.seed))
            advance(key)
    rows = [store[f"{fleet.model} {rate:g} {every:g}"] for fleet, rate, every in cases]
    table = TableRows("spot", f"{hours:g} hours of losses and returns", NOTE, rows)
    ratios = [row["samples_per_s ours"] / row["samples_per_s restart"] for row in rows]
    summary = {
        "least over restart": min(ratios),
        "most over restart": max(ratios),
        "least over templates": min(
            row["samples_per_s ours"] / row["samples_per_s templates"] for row in rows
        ),
        "least share of the ceiling": min(row["ours share"] for row in rows),
    }
    return SectionResult([table], summary, store)


def _row(fleet: Fleet, rate: float, every_s: float, hours: float, seed: int) -> Row:
    problem, plan = _planned(fleet, seed)
    draw = SpotDraw(duration_s=hours * 3600, device=SpotRates(rate, DEVICE_RATES.mean_absence_s))
    trace = draw_spot_trace(problem.cluster, draw, seed)
    found = compare_strategies(
        problem, plan, trace, SpotSettings(checkpoint_every_s=every_s), tolerated=1
    )
    results = dict(zip((RESTART, TEMPLATES, OURS), found.results, strict=True))
    return {
        "model": fleet.model,
        "cluster": fleet.cluster,
        "losses_per_device_hour": rate,
        "checkpoint_s": every_s,
        "changes ours": len(results[OURS].recoveries),
        **{f"samples_per_s {name}": r.goodput_samples_per_s for name, r in results.items()},
        **{f"{name} share": found.share(result) for name, result in results.items()},
        **{f"lost_s {name}": sum(r.lost_s.values()) / hours for name, r in results.items()},
        **{
            f"usd_per_million {name}": r.usd_per_million_samples or 0.0
            for name, r in results.items()
        },
    }


def _planned(fleet: Fleet, seed: int) -> tuple[Problem, Plan]:
    problem = load_problem(fleet.model, fleet.cluster, global_batch_size=fleet.global_batch_size)
    return problem, place(problem, planner_named("auto", seed=seed)).plan
