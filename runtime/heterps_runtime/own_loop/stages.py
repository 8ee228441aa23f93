"""The stages of one rank under a user's optimizer."""

from __future__ import annotations

import torch

from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.master_weights import OptimizerFactory, with_master_weights
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.stages.stage import StageModule
from heterps_runtime.transport.communication import Communicator


class UserStages(OwnedStages):
    """What one rank trains. All ranks build it at the same time.

    Args:
        specification: Of the run.
        modules: Stages by name.
        communicator: The processes.
        optimizer: Makes the optimizer over what this rank steps that is not frozen; where that has
            a smaller format than float32, over float32 copies.
    """

    def __init__(
        self,
        specification: RunSpecification,
        modules: dict[str, StageModule],
        communicator: Communicator,
        optimizer: OptimizerFactory,
    ) -> None:
        self._make = optimizer
        super().__init__(specification, modules, communicator)

    def _optimizer_of(self, specification: RunSpecification) -> torch.optim.Optimizer | None:
        trained = [parameter for parameter in self.stepped.values() if parameter.requires_grad]
        return with_master_weights(trained, self._make) if trained else None
