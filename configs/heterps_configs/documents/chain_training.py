"""Training configurations for policies that place chains of layers stage by stage."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from heterps_configs.documents.training import Range, TrainingConfig

MOST_LAYERS, MOST_CLASSES = 4096, 16


class ChainTrainingConfig(TrainingConfig):
    """Chains to learn from, imitation, and episodes.

    Attributes:
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
        num_environments: Episodes at once.
        steps_per_update: Steps of each episode before the network is updated.
        gae_lambda: Generalised advantage estimation.
        curve_problems: Problems of each other test set whose gap is logged: longer, more types.
    """

    fixed_fields: ClassVar = (
        "objective",
        "hidden",
        "seed",
        "layers",
        "classes",
        "pool_size",
        "num_environments",
    )
    range_fields: ClassVar = ("layers", "classes", "devices_per_class", "target_range")

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

    num_environments: PositiveInt = 256
    steps_per_update: PositiveInt = 16
    minibatch_size: PositiveInt = 1024
    epochs: PositiveInt = 3
    entropy_weight: NonNegativeFloat = 0.01
    gae_lambda: float = Field(default=0.95, gt=0, le=1)

    evaluation_problems: PositiveInt = 160
    curve_problems: NonNegativeInt = 24
    evaluation_every_s: PositiveFloat = 20.0

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.imitation_passes > 0 and self.objective != "throughput":
            raise ValueError(
                f"imitation_passes: must be 0 with the objective {self.objective}: only the optima "
                "of the objective throughput are imitated"
            )
        if self.layers[1] > MOST_LAYERS or self.classes[1] > MOST_CLASSES:
            raise ValueError(
                f"at most {MOST_LAYERS} layers and {MOST_CLASSES} device classes can be trained on"
            )
        return self
