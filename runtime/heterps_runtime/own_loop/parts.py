"""What a rank has built of a user's model: nothing before the first samples say what it takes."""

from __future__ import annotations

from collections.abc import Sized
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_runtime.own_loop import checkpoints
from heterps_runtime.own_loop.build import Beginning, Builder, Built
from heterps_runtime.own_loop.model import Inputs
from heterps_runtime.own_loop.ranks import Ranks
from heterps_runtime.training.own_state import OwnState
from heterps_runtime.training.prepared import first_batch
from heterps_runtime.training.program import TrainingProgram


class Parts:
    """One rank's parts of a training.

    Args:
        plan: Its stages and its job.
        program: Loss, optimizer and what else there is to the training.
        ranks: The processes.
        beginning: Of the model's values.

    Attributes:
        own_state: Of the program; a checkpoint has it, too.
        built: None before the first samples.
        num_steps: Optimizer steps that are done, those of a checkpoint included.
    """

    def __init__(
        self, plan: Plan, program: TrainingProgram, ranks: Ranks, beginning: Beginning
    ) -> None:
        self.plan, self.program, self.ranks = plan, program, ranks
        self.own_state = OwnState(program.state)
        self.num_steps, origin = checkpoints.progress(beginning.resume, ranks)
        self._builder = Builder(plan, program, self.own_state, ranks, beginning, origin)
        self.built: Built | None = None

    def of_batch(self, inputs: Inputs, target: Tensor) -> Built:
        """What there is; built by these samples the first time, on all ranks at once."""
        if self.built is None:
            self.built = self._builder.build(inputs, target, self.num_steps)
        return self.built

    def of_data(self, program: TrainingProgram, data: Any) -> Built:
        """The same by the first samples of a data set; nothing has begun where there are none."""
        self.ranks.together(lambda: _check_not_empty(data))
        if self.built is None:
            size = self.plan.job.micro_batch_size
            inputs, target = self.ranks.together(lambda: first_batch(program, data, size))
            self.built = self._builder.build(inputs, target, self.num_steps)
        return self.built

    def failing_together(self) -> AbstractContextManager[None]:
        """Turns the failure of one rank into one of all."""
        return self.ranks.failures.shared(self._let_go)

    def _let_go(self) -> None:
        """Messages under way keep connections open, and their callers waiting."""
        if self.built is not None:
            self.built.executor.abandon()


def _check_not_empty(data: Any) -> None:
    if isinstance(data, Sized) and len(data) == 0:
        raise HeterpsError("data: is empty; at least one sample is needed")
