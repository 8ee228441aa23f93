"""Which engine and which clock a device's steps run by: what the specification asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from heterps_runtime.execution.cuda_clock import CudaClock
from heterps_runtime.execution.emulation import Clock, EmulatedClock, HostClock
from heterps_runtime.execution.evaluation import EvaluatingExecutor
from heterps_runtime.execution.executor import BeforeUpdate
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.training.prepared import loss_of
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.transport.messenger import Messenger

if TYPE_CHECKING:
    from heterps_runtime.execution.torch_engine import TorchEngine


def clock_of(specification: RunSpecification, device: str, compute: torch.device) -> Clock:
    """What times the actions of a device.

    Args:
        specification: Says which devices are emulated.
        device: Its name in the plan.
        compute: Where its process computes.
    """
    if specification.emulated_device(device) is not None:
        return EmulatedClock()
    return HostClock() if compute.type == "cpu" else CudaClock(compute)


def engine_of(
    specification: RunSpecification,
    owned: OwnedStages,
    messenger: Messenger,
    clock: Clock,
    program: TrainingProgram,
    *,
    device: str,
    first_step: int,
    before_update: BeforeUpdate | None,
) -> EvaluatingExecutor | TorchEngine:
    """What carries out the actions of a device.

    Args:
        specification: Names the engine, and has the actions.
        owned: The device's stages.
        messenger: To the other ranks.
        clock: Times the actions, and holds emulated ones back; torch's engine needs none.
        program: Has the loss, where the model's source has none of its own.
        device: Its name in the plan.
        first_step: That it carries out.
        before_update: What ranks do between the gradients of a step and its update.
    """
    assert specification.profile.source is not None
    if specification.engine == "heterps":
        loss = loss_of(program, specification.profile.source)
        return EvaluatingExecutor(
            specification,
            device,
            owned,
            messenger,
            clock,
            loss,
            first_step=first_step,
            before_update=before_update,
        )
    # torch.distributed.pipelining takes more than a second to import.
    from heterps_runtime.execution.torch_engine import TorchEngine

    return TorchEngine(specification, device, owned, messenger, first_step)
