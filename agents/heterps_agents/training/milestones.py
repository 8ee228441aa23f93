"""What a run on chains is judged by, and when it got there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from heterps_agents.training.evaluation import Gap

# What a run is judged by: numbers of curves, and the limits that they must be below.
MILESTONES = {
    "greedy median 0": {("development/greedy", "median"): 1e-3},
    "beam 16 median 0, mean below 0.3 %, p95 below 0.2 %": {
        ("development/beam16", "median"): 1e-3,
        ("development/beam16", "mean"): 3e-3,
        ("development/beam16", "p95"): 2e-3,
    },
}


class Milestone(NamedTuple):
    """When a run first reached a goal: at an evaluation, so a little late."""

    steps: int
    cpu_s: float


def reached(
    gaps: Mapping[str, Gap], milestones: dict[str, Milestone], steps: int, cpu_s: float
) -> None:
    """Adds the milestones that an evaluation has reached for the first time.

    Args:
        gaps: By curve, see `heterps_agents.training.evaluation.TestSets`.
        milestones: Those reached before; added to.
        steps: Environment steps so far.
        cpu_s: Processor seconds of training so far, evaluations left out.
    """
    for name, goals in MILESTONES.items():
        met = all(
            curve in gaps and getattr(gaps[curve], field) < limit
            for (curve, field), limit in goals.items()
        )
        if met and name not in milestones:
            milestones[name] = Milestone(steps, round(cpu_s, 1))
