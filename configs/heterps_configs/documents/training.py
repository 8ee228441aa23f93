"""What the training configurations of all policies have in common."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from heterps_configs.documents.base import Document

Range = tuple[PositiveInt, PositiveInt]


class TrainingConfig(Document):
    """When to stop, PPO, and how often a run reports. What is learned from says a subclass.

    Attributes:
        description: One line for lists.
        seed: Of problems, episodes and weights.
        budget_s: Stop after so many seconds of training; evaluation included.
        total_steps: Stop after so many decisions; makes a run repeatable.
        hidden: Width of the layers that score candidates.
        minibatch_size: Decisions of one gradient.
        epochs: Passes over the decisions of an update.
        learning_rate: At the start; falls linearly to `final_learning_rate`.
        entropy_weight: Bonus for undecided policies; falls to a tenth.
        clip_range: PPO's limit on the change of probabilities.
        evaluation_problems: Held-out problems that the policy is judged by.
        evaluation_every_s: Seconds between two evaluations.
        checkpoint_every_s: Seconds between two checkpoints.
        num_threads: Of torch. The networks are so small that a second thread seldom pays.
        fixed_fields: What a checkpoint has room for: these cannot change when a run goes on.
        range_fields: Smallest and largest of something.
    """

    fixed_fields: ClassVar[tuple[str, ...]]
    range_fields: ClassVar[tuple[str, ...]]

    description: str = ""
    seed: NonNegativeInt = 0
    budget_s: PositiveFloat | None = None
    total_steps: PositiveInt | None = None

    hidden: PositiveInt = 64
    minibatch_size: PositiveInt
    epochs: PositiveInt
    learning_rate: PositiveFloat = 2e-3
    final_learning_rate: PositiveFloat = 1e-4
    entropy_weight: NonNegativeFloat
    clip_range: PositiveFloat = 0.2

    evaluation_problems: PositiveInt
    evaluation_every_s: PositiveFloat
    checkpoint_every_s: PositiveFloat = 30.0
    num_threads: PositiveInt = 1

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.budget_s is None and self.total_steps is None:
            raise ValueError("budget_s or total_steps must be given: training has to end")
        for name in self.range_fields:
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: the smallest, {low}, is above the largest, {high}")
        return self
