"""Training configurations: what `heterps train` needs to make a placement policy."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from heterps_configs.documents.base import Document

Range = tuple[PositiveInt, PositiveInt]


class TrainingConfig(Document):
    """Problems to learn from, PPO, and when to stop.

    Attributes:
        description: One line for lists.
        seed: Of problems, episodes and weights.
        budget_s: Stop after so many seconds of training; evaluation included.
        total_steps: Stop after so many environment steps; makes a run repeatable.
        objective: What is learned: `throughput`: short steps. `price`: cheap samples under a
            throughput floor. `budget`: short steps under a limit on the price per hour.
        layers: Fewest and most layers of a problem.
        classes: The same of device classes.
        devices_per_class: The same of devices of one class.
        target_range: Targets as multiples of the bottleneck of the best known placement.
        pool_size: Problems that are ready at any time.
        refreshed_per_update: Problems of them that each update replaces by new ones.
        prioritised_share: Share of the episodes that prefer problems which some episodes solve and
            others do not.
        imitation_passes: Before PPO, the network so often learns decisions of exact optima; only
            with the objective `throughput`.
        imitation_problems: Problems whose optima are replayed in one such pass.
        imitation_refreshed: Problems of the pool that are replaced before each pass.
        imitation_learning_rate: At the first pass; falls to a twentieth.
        longest_exact_s: A problem whose exact optimum takes longer by prediction starts from the
            greedy rule instead; its reference is then the best that any episode has found. With
            another objective than `throughput` it is left out.
        hidden: Width of the network.
        num_environments: Episodes at once.
        steps_per_update: Steps of each episode before the network is updated.
        minibatch_size: Steps of one gradient.
        epochs: Passes over the steps of an update.
        learning_rate: At the start; falls linearly to `final_learning_rate`.
        entropy_weight: Bonus for undecided policies; falls to a tenth.
        clip_range: PPO's limit on the change of probabilities.
        gae_lambda: Generalised advantage estimation.
        evaluation_problems: Held-out problems in range whose gap to the optimum is logged.
        curve_problems: Problems of each other test set whose gap is logged: longer, more types.
        evaluation_every_s: Seconds between two evaluations.
        checkpoint_every_s: Seconds between two checkpoints.
        num_threads: Of torch. The network is so small that a second thread seldom pays.
    """

    description: str = ""
    seed: NonNegativeInt = 0
    budget_s: PositiveFloat | None = None
    total_steps: PositiveInt | None = None

    objective: Literal["throughput", "price", "budget"] = "throughput"
    layers: Range = (8, 32)
    classes: Range = (2, 4)
    devices_per_class: Range = (1, 4)
    target_range: tuple[PositiveFloat, PositiveFloat] = (1.0, 1.12)
    pool_size: PositiveInt = 2048
    refreshed_per_update: NonNegativeInt = 8
    prioritised_share: float = Field(default=0.3, ge=0, le=1)
    imitation_passes: NonNegativeInt = 0
    imitation_problems: PositiveInt = 4096
    imitation_refreshed: NonNegativeInt = 256
    imitation_learning_rate: PositiveFloat = 2e-3
    longest_exact_s: PositiveFloat = 0.05

    hidden: PositiveInt = 64
    num_environments: PositiveInt = 256
    steps_per_update: PositiveInt = 16
    minibatch_size: PositiveInt = 1024
    epochs: PositiveInt = 3
    learning_rate: PositiveFloat = 2e-3
    final_learning_rate: PositiveFloat = 1e-4
    entropy_weight: NonNegativeFloat = 0.01
    clip_range: PositiveFloat = 0.2
    gae_lambda: float = Field(default=0.95, gt=0, le=1)

    evaluation_problems: PositiveInt = 160
    curve_problems: NonNegativeInt = 24
    evaluation_every_s: PositiveFloat = 20.0
    checkpoint_every_s: PositiveFloat = 30.0
    num_threads: PositiveInt = 1

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.budget_s is None and self.total_steps is None:
            raise ValueError("budget_s or total_steps must be given: training has to end")
        for name in ("layers", "classes", "devices_per_class", "target_range"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: the smallest, {low}, is above the largest, {high}")
        if self.imitation_passes > 0 and self.objective != "throughput":
            raise ValueError(
                f"imitation_passes: must be 0 with the objective {self.objective}: only the optima "
                "of the objective throughput are imitated"
            )
        if self.layers[1] > 4096 or self.classes[1] > 16:
            raise ValueError("at most 4096 layers and 16 device classes can be trained on")
        return self
