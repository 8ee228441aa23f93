"""The steps of a run as they are done, and what is kept of all of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heterps_runtime.results.step_figures import StepFigures


@dataclass(frozen=True)
class StepProgress:
    """One finished step.

    Attributes:
        loss: Mean loss of the global batch.
        generation: 0 for the first plan, one more for every re-plan.
        measured: What the step took; memory as it was measured in an earlier step of the plan.
        predicted: What it should have taken.
        memory_limit_bytes: What each device of the plan has.
        unlearned: What it should have taken according to the problem that the run began with:
            drift is told against it.
    """

    step: int
    num_steps: int
    loss: float
    generation: int
    measured: StepFigures
    predicted: StepFigures
    memory_limit_bytes: Mapping[str, int]
    unlearned: StepFigures

    @property
    def step_time_s(self) -> float:
        """Measured seconds of the step."""
        return self.measured.step_time_s


class DoneSteps:
    """What is kept of every step of a run: a few numbers each, since there may be millions.

    Attributes:
        steps: Their numbers, in order.
        losses: Mean loss of each.
        step_times_s: As measured.
        generations: The plan of each.
    """

    def __init__(self) -> None:
        self.steps, self.generations = array("q"), array("q")
        self.losses, self.step_times_s = array("d"), array("d")
        self._bubbles: dict[str, array[float]] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self.steps)

    def add(self, progress: StepProgress) -> None:
        """Takes one more step."""
        shares = progress.measured.bubble_shares
        for device in shares.keys() - self._bubbles.keys():
            self._bubbles[device] = array("d", [math.nan]) * len(self)
        for device, column in self._bubbles.items():
            column.append(shares.get(device, math.nan))
        self.steps.append(progress.step)
        self.generations.append(progress.generation)
        self.losses.append(progress.loss)
        self.step_times_s.append(progress.step_time_s)

    def take_back_from(self, step: int) -> None:
        """Forgets a step and all later ones: they come again."""
        while self.steps and self.steps[-1] >= step:
            for numbers in (self.steps, self.generations):
                numbers.pop()
            for figures in (self.losses, self.step_times_s, *self._bubbles.values()):
                figures.pop()

    def bubbles(self, device: str, indices: Iterable[int]) -> list[tuple[float, float]]:
        """Step time and bubble share of a device, in those of some steps that measured it."""
        column = self._bubbles.get(device, array("d"))
        own = [(self.step_times_s[i], column[i]) for i in indices] if column else []
        return [(seconds, share) for seconds, share in own if not math.isnan(share)]
