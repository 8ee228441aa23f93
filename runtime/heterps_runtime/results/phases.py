"""A run in phases, one for each plan: what a step took on average, beside what was predicted."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence

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
            others. Of a plan, no steps since a drift, which its prediction does not know, unless
            all of them are; of the whole run, these too: a user waits for them.
        num_drifted_steps: Those since a drift, at the end of a plan's steps; all of them where it
            is older than the plan.
        predicted_step_time_s: Mean of what was predicted.
        measured_step_time_s: Mean of what was measured.
        relative_error: Predicted over measured, minus 1.
        drifted_step_time_s: Of a plan: mean of what was measured since the drift; None: no drift.
    """

    generation: int | None = None
    planner: str = ""
    first_step: int
    num_steps: int
    num_counted_steps: int
    num_drifted_steps: int = 0
    predicted_step_time_s: float
    measured_step_time_s: float
    relative_error: float
    drifted_step_time_s: float | None = None

    @property
    def drifted_from(self) -> int | None:
        """Of a plan: the first step since the drift; None: no drift."""
        if self.drifted_step_time_s is None:
            return None
        return self.first_step + self.num_steps - self.num_drifted_steps

    @property
    def began_drifted(self) -> bool:
        """Of a plan: whether none of its steps is from before a drift."""
        return self.drifted_step_time_s is not None and self.num_drifted_steps == self.num_steps


def phases_of(
    step_times_s: Sequence[float],
    generations: Sequence[int],
    plans: Mapping[int, tuple[str, float]],
    first_step: int,
    drifted: Collection[int] = (),
) -> tuple[Phase, ...]:
    """The phases in order, and the whole run last.

    Args:
        step_times_s: Measured, of every step.
        generations: Its plan.
        plans: Planner, and predicted seconds of a step, of each plan.
        first_step: Number of the first step.
        drifted: Indices of the steps since a drift that the prediction of their plan ignores.
    """
    steps_of: dict[int, list[int]] = {}
    for index, generation in enumerate(generations):
        steps_of.setdefault(generation, []).append(index)
    parts: list[tuple[int | None, list[int], list[int]]] = []
    waited_for: list[int] = []
    for number, steps in steps_of.items():
        steady = [step for step in steps if step not in drifted] or steps
        parts.append((number, steps, warm_steps(generations, steady)))
        waited_for += warm_steps(generations, steps)
    parts.append((None, list(range(len(generations))), waited_for))
    phases = []
    for plan, steps, warm in parts:
        slow = [step for step in steps if step in drifted]
        predicted_s = statistics.fmean(plans[generations[step]][1] for step in warm)
        measured_s = statistics.fmean(step_times_s[step] for step in warm)
        phases.append(
            Phase(
                generation=plan,
                planner="" if plan is None else plans[plan][0],
                first_step=first_step + steps[0],
                num_steps=len(steps),
                num_counted_steps=len(warm),
                num_drifted_steps=len(slow),
                predicted_step_time_s=predicted_s,
                measured_step_time_s=measured_s,
                relative_error=predicted_s / measured_s - 1,
                drifted_step_time_s=(
                    statistics.fmean(step_times_s[step] for step in slow)
                    if slow and plan is not None
                    else None
                ),
            )
        )
    return tuple(phases)
