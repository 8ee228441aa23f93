"""Training configurations for policies that place graphs node by node."""

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
MOST_NODES, MOST_DEVICES = 4096, 16


class GraphTrainingConfig(Document):
    """Graphs to learn from, PPO with a group baseline, and when to stop.

    Attributes:
        problems: Always `graphs`: tells these files from those for chains of layers.
        description: One line for lists.
        seed: Of problems, episodes and weights.
        budget_s: Stop after so many seconds of training; evaluation included.
        total_steps: Stop after so many placed nodes; makes a run repeatable.
        nodes: Fewest and most nodes of a graph.
        devices: The same of devices.
        first_nodes: Most nodes at the start; the limit grows to that of `nodes`.
        growth_share: Share of the budget over which it grows.
        hidden: Width of the layers that score devices.
        node_width: Width of the message passing.
        message_rounds: How often nodes hear from their producers and consumers.
        problems_per_update: Fresh problems that an update learns from.
        rollouts: Placements of each of them; they are judged against each other.
        minibatch_size: Decisions of one gradient.
        epochs: Passes over the decisions of an update.
        learning_rate: At the start; falls linearly to `final_learning_rate`.
        entropy_weight: Bonus for undecided policies; falls to a tenth.
        clip_range: PPO's limit on the change of probabilities.
        polish_evaluations: Of the short annealing that makes an example of each problem's best
            placement; 0 for no examples.
        example_weight: Of imitating the examples, beside the policy's own experience; falls to a
            tenth.
        evaluation_problems: Held-out problems whose step times are logged.
        evaluation_every_s: Seconds between two evaluations.
        checkpoint_every_s: Seconds between two checkpoints.
        num_threads: Of torch.
    """

    problems: Literal["graphs"]
    description: str = ""
    seed: NonNegativeInt = 0
    budget_s: PositiveFloat | None = None
    total_steps: PositiveInt | None = None

    nodes: Range = (24, 64)
    devices: Range = (3, 6)
    first_nodes: PositiveInt = 40
    growth_share: float = Field(default=0.3, ge=0, le=1)

    hidden: PositiveInt = 64
    node_width: PositiveInt = 32
    message_rounds: NonNegativeInt = 2
    problems_per_update: PositiveInt = 48
    rollouts: int = Field(default=8, ge=2)
    minibatch_size: PositiveInt = 2048
    epochs: PositiveInt = 2
    learning_rate: PositiveFloat = 2e-3
    final_learning_rate: PositiveFloat = 1e-4
    entropy_weight: NonNegativeFloat = 0.02
    clip_range: PositiveFloat = 0.2
    polish_evaluations: NonNegativeInt = 1000
    example_weight: NonNegativeFloat = 0.5

    evaluation_problems: PositiveInt = 60
    evaluation_every_s: PositiveFloat = 30.0
    checkpoint_every_s: PositiveFloat = 30.0
    num_threads: PositiveInt = 1

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.budget_s is None and self.total_steps is None:
            raise ValueError("budget_s or total_steps must be given: training has to end")
        for name in ("nodes", "devices"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: the smallest, {low}, is above the largest, {high}")
        if self.nodes[1] > MOST_NODES or self.devices[1] > MOST_DEVICES:
            raise ValueError(
                f"at most {MOST_NODES} nodes and {MOST_DEVICES} devices can be trained on"
            )
        if not self.nodes[0] <= self.first_nodes <= self.nodes[1]:
            raise ValueError(
                f"first_nodes: {self.first_nodes} is not within nodes, {list(self.nodes)}"
            )
        return self
