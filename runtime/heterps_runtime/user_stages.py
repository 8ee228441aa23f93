"""The stages of one rank under a user's optimizer, with gradient clipping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from heterps_runtime.communication import Communicator
from heterps_runtime.master_weights import OptimizerFactory, with_master_weights
from heterps_runtime.messenger import Messenger
from heterps_runtime.owned_stages import OwnedStages
from heterps_runtime.run_specification import RunSpecification
from heterps_runtime.stage import StageModule


class UserStages(OwnedStages):
    """What one rank trains. All ranks build it at the same time.

    Args:
        specification: Of the run.
        modules: Stages by name.
        communicator: The processes.
        optimizer: Makes the optimizer over the own parameters that are not frozen.
        max_gradient_norm: Of all gradients of the model together; None for no limit.
    """

    def __init__(
        self,
        specification: RunSpecification,
        modules: dict[str, StageModule],
        communicator: Communicator,
        optimizer: OptimizerFactory,
        max_gradient_norm: float | None,
    ) -> None:
        super().__init__(specification, modules, communicator)
        trained = [p for p in self.parameters.values() if p.requires_grad]
        self.optimizer = with_master_weights(trained, optimizer) if trained else None
        self._communicator, self._max_norm = communicator, max_gradient_norm

    def update(self, messenger: Messenger) -> None:
        """One optimizer step; see `OwnedStages.update`."""
        if self._max_norm is not None:
            # Summed here and not below, because the norm is that of complete gradients.
            for index in self.unscheduled_buckets:
                self.reduce_bucket(index, messenger)
            self._clip(self._max_norm)
        else:
            super().update(messenger)
            return
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def _clip(self, max_norm: float) -> None:
        """As `torch.nn.utils.clip_grad_norm_` over the whole model: each parameter counts once."""
        rank = self._communicator.rank
        squares = squared_norm(
            {name: p for name, p in self.parameters.items() if self.owners[name][0] == rank}
        )
        total = sum(row[0] for row in self._communicator.gather_numbers(squares)) ** 0.5
        factor = min(1.0, max_norm / (total + 1e-6))
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


def squared_norm(parameters: Mapping[str, nn.Parameter]) -> float:
    """Sum of the squares of all gradients."""
    gradients: list[Any] = [p.grad for p in parameters.values() if p.grad is not None]
    return sum(float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2
               for gradient in gradients)  # fmt: skip
