"""Training configurations for policies that place graphs node by node."""

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

MOST_NODES, MOST_DEVICES = 4096, 16


class GraphTrainingConfig(TrainingConfig):
    """Graphs to learn from, groups of placements, and examples.

    Attributes:
        problems: Always `graphs`: tells these files from those for chains of layers.
        nodes: Fewest and most nodes of a graph.
        devices: The same of devices.
        first_nodes: Most nodes at the start; the limit grows to that of `nodes`.
        growth_share: Share of the budget over which it grows.
        node_width: Width of the message passing.
        message_rounds: How often nodes hear from their producers and consumers.
        problems_per_update: Fresh problems that an update learns from.
        rollouts: Placements of each of them; they are judged against each other.
        polish_evaluations: Of the short annealing that makes an example of each problem's best
            placement; 0 for no examples.
        example_weight: Of imitating the examples, beside the policy's own experience; falls to a
            tenth.
    """

    fixed_fields: ClassVar = ("hidden", "node_width", "message_rounds")
    range_fields: ClassVar = ("nodes", "devices")

    problems: Literal["graphs"]
    nodes: Range = (24, 64)
    devices: Range = (3, 6)
    first_nodes: PositiveInt = 40
    growth_share: float = Field(default=0.3, ge=0, le=1)

    node_width: PositiveInt = 32
    message_rounds: NonNegativeInt = 2
    problems_per_update: PositiveInt = 48
    rollouts: int = Field(default=8, ge=2)
    minibatch_size: PositiveInt = 2048
    epochs: PositiveInt = 2
    entropy_weight: NonNegativeFloat = 0.02
    polish_evaluations: NonNegativeInt = 1000
    example_weight: NonNegativeFloat = 0.5

    evaluation_problems: PositiveInt = 60
    evaluation_every_s: PositiveFloat = 30.0

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.nodes[1] > MOST_NODES or self.devices[1] > MOST_DEVICES:
            raise ValueError(
                f"at most {MOST_NODES} nodes and {MOST_DEVICES} devices can be trained on"
            )
        if not self.nodes[0] <= self.first_nodes <= self.nodes[1]:
            raise ValueError(
                f"first_nodes: {self.first_nodes} is not within nodes, {list(self.nodes)}"
            )
        return self
