"""Builds a rank's part of a user's model, from what the first batch says of the whole.

Rank 0 traces the model and orders the actions; all others receive the specification.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor, nn

from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_runtime.execution.emulation import Clock
from heterps_runtime.execution.engines import clock_of
from heterps_runtime.models.losses import MeanLoss
from heterps_runtime.models.recordings import share_recordings
from heterps_runtime.models.safetensors import StateDict
from heterps_runtime.own_loop.accumulation import AccumulatingExecutor
from heterps_runtime.own_loop.checkpoints import restore
from heterps_runtime.own_loop.checks import check_elementwise, without_draws
from heterps_runtime.own_loop.model import Inputs, ModuleValues, source_of
from heterps_runtime.own_loop.plan import specification_of
from heterps_runtime.own_loop.ranks import Ranks
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages import batch_norm
from heterps_runtime.stages.build import build_stages
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.stages.start_values import StartValues
from heterps_runtime.training.own_state import OwnState
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.training.sample_order import Position
from heterps_runtime.transport.device_messenger import messenger_for
from heterps_runtime.transport.group_sums import GroupSums, group_sums


class Beginning(NamedTuple):
    """Where the values of a model come from.

    Attributes:
        model: A factory, or a module, whose values are copied.
        seed: Of initial parameters and dropout.
        state_dict: Values by name; None where they are not given like this.
        weights: Folder of safetensors files; None where there is none.
        resume: Checkpoint, or folder of them; None where training starts.
    """

    model: nn.Module | Callable[[], nn.Module]
    seed: int
    state_dict: Mapping[str, Tensor] | None
    weights: str | None
    resume: str | None

    @classmethod
    def of(
        cls,
        model: nn.Module | Callable[[], nn.Module],
        seed: int,
        weights: str | os.PathLike[str] | Mapping[str, Tensor] | None,
        resume: str | os.PathLike[str] | None,
    ) -> Beginning:
        """What a user gave.

        Raises:
            HeterpsError: There are values besides those of a module.
        """
        if isinstance(model, nn.Module) and weights is not None:
            raise HeterpsError("weights: a module has values already; give a factory")
        state_dict = weights if isinstance(weights, Mapping) else None
        is_folder = weights is not None and state_dict is None
        folder = str(weights) if is_folder else None
        return cls(model, seed, state_dict, folder, None if resume is None else str(resume))

    def values(self) -> StartValues | None:
        """What gives parameters their values; None where the specification says it."""
        if isinstance(self.model, nn.Module):
            return ModuleValues(self.model)
        if self.state_dict is not None and self.resume is None:
            return StateDict(self.state_dict)
        return None


class Built(NamedTuple):
    """What a rank has built of a model, and what its steps are carried out by."""

    specification: RunSpecification
    owned: OwnedStages
    executor: AccumulatingExecutor
    clock: Clock
    sums: GroupSums | None


class Builder:
    """Builds the parts of one rank; all ranks do at the same time.

    Args:
        plan: Its stages and its job.
        program: Loss, optimizer and what else there is to the training.
        own_state: Of the program; a checkpoint has it, too.
        ranks: The processes.
        beginning: Of the model's values.
        origin: Where the samples begin that are still due.
    """

    def __init__(
        self,
        plan: Plan,
        program: TrainingProgram,
        own_state: OwnState,
        ranks: Ranks,
        beginning: Beginning,
        origin: Position,
    ) -> None:
        self._plan, self._program, self._own_state = plan, program, own_state
        self._ranks, self._beginning, self._origin = ranks, beginning, origin

    def build(self, inputs: Inputs, target: Tensor, num_steps: int) -> Built:
        """The stages of this rank, and what carries out their steps.

        Args:
            inputs: Of some samples.
            target: Of the same samples.
            num_steps: Optimizer steps that are done.

        Raises:
            HeterpsError: On every rank, where model or optimizer do not fit the plan.
        """
        ranks, resume = self._ranks, self._beginning.resume
        source = ranks.together(lambda: source_of(self._beginning.model, inputs, target))
        specification = self._specification(source, num_steps)
        with ranks.failures.shared():
            share_recordings(source, self._plan.job, ranks.communicator)
            sums = group_sums(specification, ranks.device, ranks.communicator)
        owned = self._stages(specification, sums)
        ranks.together(lambda: _check_optimizer(owned))
        if resume is not None:
            ranks.together(lambda: restore(resume, owned, self._own_state, ranks))
        owned.begin(num_steps)
        clock = clock_of(specification, ranks.device, ranks.communicator.device)
        executor = self._executor(specification, owned, clock, has_group=sums is not None)
        return Built(specification, owned, executor, clock, sums)

    def _specification(self, source: ModelSource, num_steps: int) -> RunSpecification:
        """That of rank 0, with what this rank knows itself."""
        is_first, beginning = self._ranks.is_first, self._beginning
        made = self._ranks.together(
            lambda: specification_of(self._plan, source, beginning.seed) if is_first else None
        )
        text = self._ranks.communicator.broadcast_text(made.model_dump_json() if made else None)
        received = RunSpecification.from_json(text)
        return received.changed(
            profile=received.profile.changed(source=source),
            weights=beginning.weights,
            resume_from=beginning.resume,
            first_step=num_steps,
            data_origin=self._origin,
            max_gradient_norm=self._program.max_gradient_norm,
        )

    def _stages(self, specification: RunSpecification, sums: GroupSums | None) -> OwnedStages:
        """Modules with their first values, and the optimizer."""
        ranks, start = self._ranks, self._beginning.values()
        device = ranks.communicator.device
        modules = ranks.together(
            lambda: build_stages(
                specification, ranks.device, start, device, sums, has_own_loss=True
            )
        )
        if ranks.is_first and any(module.has_batch_norm for module in modules.values()):
            # Where the user called the trainer.
            warnings.warn(batch_norm.REMARK, stacklevel=6)
        with ranks.failures.shared():
            return OwnedStages(specification, modules, ranks.communicator, self._program)

    def _executor(
        self, specification: RunSpecification, owned: OwnedStages, clock: Clock, *, has_group: bool
    ) -> AccumulatingExecutor:
        """What carries out this device's actions, with the user's loss."""
        function = self._program.loss
        assert function is not None
        return AccumulatingExecutor(
            specification,
            self._ranks.device,
            owned,
            messenger_for(specification, self._ranks.communicator),
            clock,
            MeanLoss(without_draws(function) if has_group else function),
        )


def _check_optimizer(owned: OwnedStages) -> None:
    """It may get parts of parameters."""
    if owned.optimizer is not None and owned.state_slices:
        check_elementwise(owned.optimizer)
