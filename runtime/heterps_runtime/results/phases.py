"""A run in phases, one for each plan: what a step took on average, beside what was predicted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from heterps_configs.documents.base import Document

# The first steps under a plan set up connections and warm caches; no median counts them.
WARM_UP_STEPS = 2


def warm_steps(generations: Sequence[int], steps: Sequence[int]) -> list[int]:
    """Those of some steps that are not warm-up steps of their plan; all where there are no others.

    Args:
        generations: The plan of every step of the run.
        steps: Indices into it.
    """
    first_of = {generation: generations.index(generation) for generation in set(generations)}
    warm = [s for s in steps if s - first_of[generations[s]] >= WARM_UP_STEPS]
    return warm or list(steps)


class Phase(Document):
    """The steps of a run under one plan, or all of them.

    Attributes:
        generation: Of the plan; None for the whole run.
        planner: Of the plan; empty for the whole run.
        first_step: Of the phase, counted from the beginning of training.
        num_steps: Of the phase.
        num_counted_steps: Those that the means are means of: no warm-up steps, where there are
            others. Steps on devices that had become slow count: a user waits for them, too.
        predicted_step_time_s: Mean of what was predicted.
        measured_step_time_s: Mean of what was measured.
        relative_error: Predicted over measured, minus 1.
    """

    generation: int | None = None
    planner: str = ""
    first_step: int
    num_steps: int
    num_counted_steps: int
    predicted_step_time_s: float
    measured_step_time_s: float
    relative_error: float


def phases_of(
    step_times_s: Sequence[float],
    generations: Sequence[int],
    plans: Mapping[int, tuple[str, float]],
    first_step: int,
) -> tuple[Phase, ...]:
    """The phases in order, and the whole run last.

    Args:
        step_times_s: Measured, of every step.
        generations: Its plan.
        plans: Planner, and predicted seconds of a step, of each plan.
        first_step: Number of the first step.
    """
    steps_of: dict[int, list[int]] = {}
    for index, generation in enumerate(generations):
        steps_of.setdefault(generation, []).append(index)
    counted = {number: warm_steps(generations, steps) for number, steps in steps_of.items()}
    parts = [(number, steps, counted[number]) for number, steps in steps_of.items()]
    whole = (None, list(range(len(generations))), [s for found in counted.values() for s in found])
    phases = []
    for number, steps, warm in [*parts, whole]:
        predicted_s = statistics.fmean(plans[generations[step]][1] for step in warm)
        measured_s = statistics.fmean(step_times_s[step] for step in warm)
        phases.append(
            Phase(
                generation=number,
                planner="" if number is None else plans[number][0],
                first_step=first_step + steps[0],
                num_steps=len(steps),
                num_counted_steps=len(warm),
                predicted_step_time_s=predicted_s,
                measured_step_time_s=measured_s,
                relative_error=predicted_s / measured_s - 1,
            )
        )
    return tuple(phases)
