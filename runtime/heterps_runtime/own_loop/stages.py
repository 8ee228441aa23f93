"""The stages of one rank under a user's optimizer."""

from __future__ import annotations

from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.master_weights import OptimizerFactory, with_master_weights
from heterps_runtime.stages.optimizer import use_loss_scale
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.stages.stage import StageModule
from heterps_runtime.transport.communication import Communicator


class UserStages(OwnedStages):
    """What one rank trains. All ranks build it at the same time.

    Args:
        specification: Of the run.
        modules: Stages by name.
        communicator: The processes.
        optimizer: Makes the optimizer over the own parameters that are not frozen; where these have
            a smaller format than float32, over their float32 copies.
    """

    def __init__(
        self,
        specification: RunSpecification,
        modules: dict[str, StageModule],
        communicator: Communicator,
        optimizer: OptimizerFactory,
    ) -> None:
        super().__init__(specification, modules, communicator)
        trained = [p for p in self.parameters.values() if p.requires_grad]
        self.optimizer = with_master_weights(trained, optimizer) if trained else None
        use_loss_scale(self.optimizer, self.loss_scale)
