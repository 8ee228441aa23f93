"""What follows an optimizer step: the schedule of the learning rate, and the moving average."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from heterps_configs.errors import HeterpsError
from heterps_runtime.training.program import TrainingProgram

# The key of the moving average in `optimizer.state[parameter]`: there it is saved, moved to other
# ranks and found again like all other state of the parameter.
AVERAGE = "average"
# Of the float32 copy of a parameter in a smaller format (`heterps_runtime.stages.master_weights`).
_MASTER = "master"


class Updates:
    """What a rank does behind each step of its optimizer.

    Args:
        program: Schedule and average.
        optimizer: The rank's; None where it trains nothing.

    Raises:
        HeterpsError: The schedule depends on more than the number of the step.
    """

    def __init__(self, program: TrainingProgram, optimizer: torch.optim.Optimizer | None) -> None:
        self._optimizer, self._decay = optimizer, program.ema_decay
        self._schedule = None
        if program.schedule is not None and optimizer is not None:
            self._schedule = program.schedule(optimizer)
            if isinstance(self._schedule, ReduceLROnPlateau):
                raise HeterpsError(
                    "schedule: ReduceLROnPlateau depends on losses, of which a run that goes on "
                    "from a checkpoint knows none; use a schedule of the step, such as LambdaLR"
                )

    def begin(self, step: int) -> None:
        """Goes to where the schedule is when `step` steps are done."""
        if self._schedule is None:
            return
        with warnings.catch_warnings():
            # There was a step of the optimizer before each of these: in an earlier process.
            warnings.simplefilter("ignore")
            for _ in range(step - self._schedule.last_epoch):
                self._schedule.step()

    def after_step(self, stepped: Iterable[nn.Parameter]) -> None:
        """Steps the schedule, and averages what the optimizer has updated.

        Args:
            stepped: All that it updates.
        """
        if self._schedule is not None:
            self._schedule.step()
        if self._decay is not None and self._optimizer is not None:
            for parameter in stepped:
                if parameter.requires_grad:
                    self._average(self._optimizer, parameter, self._decay)

    def _average(
        self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, decay: float
    ) -> None:
        state = optimizer.state[parameter]
        value: Tensor = state.get(_MASTER, parameter).detach()
        if AVERAGE in state:
            state[AVERAGE].lerp_(value, 1 - decay)
        else:
            state[AVERAGE] = value.clone()
