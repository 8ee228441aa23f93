"""Trains a user's own model under a plan, inside the user's own loop.

    trainer = PipelineTrainer(make_model, plan="plan.yaml", loss=loss_function,
                              optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-4))
    for inputs, target in loader:
        loss = trainer.step(inputs, target)
    trainer.save("checkpoints")

Started by `torchrun --nproc-per-node N` with N devices in the plan; with one device also by plain
`python`.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.execution.cuda_clock import CudaClock
from heterps_runtime.execution.emulation import HostClock
from heterps_runtime.execution.evaluation import Evaluator
from heterps_runtime.models.losses import MeanLoss
from heterps_runtime.models.recordings import share_recordings
from heterps_runtime.models.safetensors import StateDict
from heterps_runtime.own_loop.accumulation import AccumulatingExecutor
from heterps_runtime.own_loop.checks import (
    check_elementwise,
    check_same_samples,
    digests,
    without_draws,
)
from heterps_runtime.own_loop.fitting import Built, Fitting, Measured
from heterps_runtime.own_loop.model import Inputs, ModuleValues, named_inputs, source_of
from heterps_runtime.own_loop.plan import check_world, compute_device, specification_of
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages import batch_norm
from heterps_runtime.stages.owned_stages import OwnedStages, build_stages
from heterps_runtime.stages.start_values import StartValues
from heterps_runtime.training.batches import Batch
from heterps_runtime.training.own_state import OwnState
from heterps_runtime.training.prepared import first_batch
from heterps_runtime.training.program import OptimizerFactory, TrainingProgram
from heterps_runtime.training.sample_order import BEGINNING
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.device_messenger import messenger_for
from heterps_runtime.transport.group_sums import group_sums
from heterps_runtime.transport.shared_failures import AgreedError, SharedFailures

if TYPE_CHECKING:
    from heterps_runtime.state.checkpoint_files import CheckpointDocument

_Value = TypeVar("_Value")
_LEAVE_TIMEOUT = timedelta(seconds=5)


class PipelineTrainer:
    """One rank of a training run. All ranks make the same calls in the same order.

    A step is equal to one of a single process on the whole batch: micro-batches are gradient
    accumulation, gradients are summed over them and over replicas. A batch that is larger than the
    job's, or that comes in parts, is trained on by several calls of `accumulate` and one of
    `update`. Under a job in bfloat16 or float16, the optimizer updates float32 copies of the
    parameters; under mixed precision (`mixed-bfloat16`) parameters are float32 and the forward pass
    runs under autocast. The loss always gets the model's output in float32; on a tensor-parallel
    group every rank gets all of it. Initial parameters of a factory are a function of the seed and
    their names; a module keeps its own. Where the plan has groups, or state that replicas share,
    the optimizer gets parts of parameters, and must treat each number alone as AdamW and SGD do.

    Args:
        model: Returns a new module, built without memory on every rank; or a module.
        plan: A plan or its file. Its job says the sizes of batch and micro-batch, and the dtype of
            the parameters.
        loss: Mean loss of some samples from the model's output (the first tensor, or `logits`)
            and their target.
        optimizer: Makes an optimizer over some parameters; not called where all are frozen.
        program: What else there is to the training: groups of parameters, a schedule, a moving
            average, data for `fit` and `evaluate`; also loss and optimizer, where it has them.
        seed: Of initial parameters and dropout.
        max_gradient_norm: Gradients are clipped to it, over the whole model. None for no limit.
        weights: Folder of safetensors files that the parameters are read from; or a `state_dict`,
            the same on every rank.
        resume: Checkpoint, or folder of them, that the training goes on from.
        device: Where this rank computes; by default as the plan's cluster says: `cuda:i` for the
            i-th GPU of its node, where there is one, else the CPU.

    Attributes:
        num_steps: Optimizer steps that are done, those of a checkpoint included.
        measured: Of the last `fit`: step times, stages, memory, timeline; None before.

    Raises:
        HeterpsError: No such plan or device, or another number of processes than the plan's
            devices.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        plan: str | os.PathLike[str] | Plan,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        optimizer: OptimizerFactory | None = None,
        program: TrainingProgram | None = None,
        seed: int = 0,
        max_gradient_norm: float | None = None,
        weights: str | os.PathLike[str] | Mapping[str, Tensor] | None = None,
        resume: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self._plan = plan if isinstance(plan, Plan) else Plan.from_file(plan)
        program = program or TrainingProgram()
        self._program = dataclasses.replace(
            program,
            loss=loss or program.loss,
            optimizer=optimizer or program.optimizer,
            max_gradient_norm=(
                program.max_gradient_norm if max_gradient_norm is None else max_gradient_norm
            ),
        )
        self._own_state = OwnState(self._program.state)
        if self._program.loss is None:
            raise HeterpsError("loss: is missing; give it here or in the program")
        check_world(self._plan, int(os.environ.get("WORLD_SIZE", "1")))
        if isinstance(model, nn.Module) and weights is not None:
            raise HeterpsError("weights: a module has values already; give a factory")
        self._model, self._seed = model, seed
        self._state_dict = weights if isinstance(weights, Mapping) else None
        is_folder = weights is not None and self._state_dict is None
        self._weights = str(weights) if is_folder else None
        self._resume = None if resume is None else str(resume)
        if "RANK" not in os.environ and not dist.is_initialized():
            store = torch._C._distributed_c10d.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        rank = int(os.environ.get("RANK", "0"))
        self._communicator = Communicator(compute_device(self._plan, rank, device))
        self._device = self._plan.devices[rank]
        self._failures = SharedFailures(self._communicator, self._device)
        # A group that is left to the interpreter's end is torn down in any order, and may abort.
        atexit.register(_leave, self._failures)
        self._parts: Built | None = None
        self.num_steps = 0
        self.measured: Measured | None = None
        self._origin = BEGINNING
        if resume is not None:
            document = self._together(lambda: _document_of(str(resume)))
            self.num_steps, self._origin = document.step, document.data_position or BEGINNING

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """This rank's optimizer, for learning rate schedules; None before the first step."""
        return None if self._parts is None else self._parts.owned.optimizer

    @property
    def _executor(self) -> AccumulatingExecutor | None:
        """None before the first batch."""
        return None if self._parts is None else self._parts.executor

    @property
    def batch_size(self) -> int:
        """Samples of one step, over all ranks."""
        return self._plan.job.global_batch_size

    def step(self, inputs: Inputs, target: Tensor) -> float:
        """Trains on one batch.

        Args:
            inputs: The whole batch on every rank; a mapping goes to the model by name. Only the
                micro-batches that this rank computes are used.
            target: (B, ...).

        Returns:
            The mean loss of the batch, on every rank.

        Raises:
            HeterpsError: On every rank, where the batch has another size than the plan's, the first
                one is not the same everywhere, model or optimizer do not fit the plan, or a rank
                failed.
        """
        if self._executor is not None and self._executor.num_batches:
            loss = self.accumulate(inputs, target)
            self.update()
            return loss
        executor, batches = self._cut(inputs, target)
        return self._trained(executor, batches)

    def accumulate(self, inputs: Inputs, target: Tensor) -> float:
        """Adds the gradients of one more batch, without an optimizer step.

        Each batch has the size of the plan's job. `update` makes the step: that of one batch of all
        of them together, with the mean of their losses.

        Args:
            inputs: See `step`.
            target: See `step`.

        Returns:
            The mean loss of this batch, on every rank.

        Raises:
            HeterpsError: See `step`.
        """
        executor, batches = self._cut(inputs, target)
        with self._failures.shared(self._let_go):
            own = executor.accumulate(batches, time.perf_counter())
            rows = self._communicator.gather_numbers(own)
        return sum(row[0] for row in rows)

    def update(self) -> None:
        """The optimizer step of the batches that have been accumulated.

        Raises:
            HeterpsError: There are none, or a rank failed.
        """
        if self._executor is None or not self._executor.num_batches:
            raise HeterpsError("update: nothing has been accumulated; call accumulate before")
        with self._failures.shared(self._let_go):
            self._executor.update()
        self.num_steps += 1

    def fit(
        self,
        data: Any = None,
        *,
        num_steps: int,
        checkpoint: CheckpointSettings | None = None,
    ) -> list[float]:
        """Trains on a data set until a step, counted from the beginning of training.

        Each rank reads its part of each batch, ahead of its use. The order is a function of the
        seed, the epoch and the step; so a trainer that resumes goes on with the samples that are
        due.

        Args:
            data: See `TrainingProgram`; by default the program's.
            num_steps: Steps that are done afterwards, those of a checkpoint included; fewer where a
                callback of the program ends the training.
            checkpoint: Where and how often to save, while training goes on; None for never.

        Returns:
            The mean loss of each step.

        Raises:
            HeterpsError: See `step`; the data does not fit the plan, or a save failed.
        """
        program = self._opened(data)
        assert self._parts is not None
        specification = self._specification.changed(
            num_steps=num_steps, first_step=self.num_steps, checkpoint=checkpoint
        )
        if checkpoint is not None:
            self._prepare_folder(checkpoint)
        with self._failures.shared(self._let_go):
            loop = Fitting(
                specification,
                self._communicator,
                program,
                self._parts,
                together=self._together,
                on_done=self._note_done,
            )
            self.measured = loop.fit()
        self._parts.executor.num_samples = self.batch_size
        return list(self.measured.losses)

    def evaluate(self, data: Any = None) -> dict[str, float]:
        """Runs the forward passes alone over a data set.

        Args:
            data: With a length; by default the program's `evaluation_data`.

        Returns:
            The mean loss over its samples (`loss`), and the program's metrics; on every rank.

        Raises:
            HeterpsError: See `fit`.
        """
        program = self._program
        if data is not None:
            program = dataclasses.replace(program, evaluation_data=data)
        if program.evaluation_data is None:
            raise HeterpsError("evaluate: there is no data; give it here or in the program")
        self._built_for(program, program.evaluation_data)
        assert self._executor is not None
        with self._failures.shared(self._let_go):
            found = Evaluator(
                program, self._specification, self._executor, self._communicator
            ).run()
        self._executor.num_samples = self.batch_size
        return found

    def _opened(self, data: Any) -> TrainingProgram:
        """The program with some data, and the stages that it needs."""
        program = self._program
        if data is not None:
            program = dataclasses.replace(program, data=data)
        if program.data is None:
            raise HeterpsError("fit: there is no data; give it here or in the program")
        self._built_for(program, program.data)
        return program

    def _built_for(self, program: TrainingProgram, data: Any) -> None:
        """Builds the stages, where there are none yet; some samples say what the model takes."""
        if self._parts is None:
            size = self._plan.job.micro_batch_size
            inputs, target = self._together(lambda: first_batch(program, data, size))
            self._parts = self._built(inputs, target)

    def _trained(self, executor: AccumulatingExecutor, batches: dict[int, Batch]) -> float:
        """One step; the loss of all ranks."""
        with self._failures.shared(self._let_go):
            own, _ = executor.step(batches, time.perf_counter())
            rows = self._communicator.gather_numbers(own)
        self.num_steps += 1
        return sum(row[0] for row in rows)

    def _prepare_folder(self, settings: CheckpointSettings) -> None:
        from heterps_runtime.state.checkpoint_files import prepare_folder

        folder, is_first = Path(settings.folder), self._communicator.rank == 0
        self._together(lambda: prepare_folder(folder, is_resumed=True) if is_first else None)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a checkpoint `step-N` into a folder; complete when it returns.

        Raises:
            HeterpsError: There was no step yet, or it cannot be written.
        """
        if self._executor is None:
            raise HeterpsError("save: nothing has been trained yet")
        if self._executor.num_batches:
            raise HeterpsError("save: gradients have been accumulated; call update before")
        from heterps_runtime.state.checkpointer import Checkpointer

        settings = CheckpointSettings(folder=str(folder))
        specification = self._specification.changed(checkpoint=settings, num_steps=self.num_steps)
        self._prepare_folder(settings)
        checkpointer = Checkpointer(specification, self._communicator, lambda event: None)
        checkpointer.after_step(
            self.num_steps, self._owned, specification, None, self._own_state.encoded
        )
        checkpointer.close()

    def _cut(self, inputs: Inputs, target: Tensor) -> tuple[AccumulatingExecutor, dict[int, Batch]]:
        """This rank's micro-batches of a batch; builds its stages the first time."""
        named = self._together(lambda: self._checked(inputs, target))
        is_new = self._parts is None
        if self._parts is None:
            self._parts = self._built(inputs, target)
        executor = self._parts.executor
        start, batches, device = 0, {}, self._communicator.device
        for index, size in enumerate(self._plan.job.micro_batch_sizes):
            if index in executor.micro_batches:
                part = slice(start, start + size)
                parts = {name: tensor[part].to(device) for name, tensor in named.items()}
                batches[index] = parts, target[part].to(device)
            start += size
        if is_new:
            self._check_samples(batches)
        return executor, batches

    def _check_samples(self, batches: dict[int, Batch]) -> None:
        """Refuses a first batch that is another one on another rank."""
        is_last = any(module.is_last for module in self._owned.modules.values())
        own = self._together(lambda: digests(batches, with_target=is_last))
        with self._failures.shared():
            rows = self._communicator.gather(own, list[list[int]])
        check_same_samples(rows, self._plan.devices)

    def _checked(self, inputs: Inputs, target: Tensor) -> dict[str, Tensor]:
        named = named_inputs(inputs)
        expected = self._plan.job.global_batch_size
        for name, tensor in {**named, "target": target}.items():
            if len(tensor) != expected:
                raise HeterpsError(
                    f"batch: {name} has {len(tensor)} samples; the plan's job has "
                    f"global_batch_size {expected}"
                )
        return named

    def _built(self, inputs: Inputs, target: Tensor) -> Built:
        """The stages of this rank, from what the first batch says of the model."""
        source = self._together(lambda: source_of(self._model, inputs, target))
        is_first = self._communicator.rank == 0
        made = self._together(
            lambda: specification_of(self._plan, source, self._seed) if is_first else None
        )
        text = self._communicator.broadcast_text(made.model_dump_json() if made else None)
        received = RunSpecification.from_json(text)
        self._specification = received.changed(
            profile=received.profile.changed(source=source),
            weights=self._weights,
            resume_from=self._resume,
            first_step=self.num_steps,
            data_origin=self._origin,
            max_gradient_norm=self._program.max_gradient_norm,
        )
        start: StartValues | None = None
        if isinstance(self._model, nn.Module):
            start = ModuleValues(self._model)
        elif self._state_dict is not None and self._resume is None:
            start = StateDict(self._state_dict)
        device = self._communicator.device
        with self._failures.shared():
            share_recordings(source, self._plan.job, self._communicator)
            sums = group_sums(self._specification, self._device, self._communicator)
        modules = self._together(
            lambda: build_stages(
                self._specification, self._device, start, device, sums, has_own_loss=True
            )
        )
        if is_first and any(module.has_batch_norm for module in modules.values()):
            warnings.warn(batch_norm.REMARK, stacklevel=4)
        with self._failures.shared():
            self._owned = OwnedStages(
                self._specification, modules, self._communicator, self._program
            )
        self._together(self._check_optimizer)
        if self._resume is not None:
            self._together(self._restore)
        self._owned.begin(self.num_steps)
        messenger = messenger_for(self._specification, self._communicator)
        function = self._program.loss
        assert function is not None
        clock = HostClock() if device.type == "cpu" else CudaClock(device)
        executor = AccumulatingExecutor(
            self._specification,
            self._device,
            self._owned,
            messenger,
            clock,
            MeanLoss(function if sums is None else without_draws(function)),
        )
        return Built(self._owned, executor, clock, sums)

    def _note_done(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def _let_go(self) -> None:
        """Messages under way keep connections open, and their callers waiting."""
        if self._executor is not None:
            self._executor.abandon()

    def _check_optimizer(self) -> None:
        """It may get parts of parameters."""
        optimizer = self._owned.optimizer
        if optimizer is not None and self._owned.state_slices:
            check_elementwise(optimizer)

    def _restore(self) -> None:
        from heterps_runtime.state.checkpoint import restore_stages

        assert self._resume is not None
        document = restore_stages(self._resume, self._owned)
        for remark in self._own_state.load(document.program_state):
            if self._communicator.rank == 0:
                warnings.warn(remark, stacklevel=6)

    def _together(self, make: Callable[[], _Value]) -> _Value:
        """What `make` returns; where it fails on one rank, all ranks raise the same error."""
        self._failures.check()
        messages: list[str] = []
        made: list[_Value] = []
        try:
            made.append(make())
        except Exception as error:
            is_own = isinstance(error, HeterpsError)
            messages = [str(error) if is_own else f"{type(error).__name__}: {error}"]
        with self._failures.shared():
            gathered = self._communicator.gather(messages, list[str])
        for rank, found in enumerate(gathered):
            if found:
                raise AgreedError(f"rank {rank} ({self._plan.devices[rank]}): {found[0]}")
        return made[0]


def _leave(failures: SharedFailures) -> None:
    """Ends the process group with the other ranks: one that goes early may abort the others."""
    if not dist.is_initialized():
        return
    error = getattr(sys, "last_value", None)
    if error is not None:
        # A rank that fails does not wait for those that wait for its messages.
        failures.tell(error)
    else:
        with contextlib.suppress(RuntimeError):
            dist.monitored_barrier(timeout=_LEAVE_TIMEOUT)
    dist.destroy_process_group()


def _document_of(folder: str) -> CheckpointDocument:
    """What the newest checkpoint of a folder says."""
    from heterps_runtime.state.checkpoint_files import CheckpointDocument, find_checkpoint

    return CheckpointDocument.of(find_checkpoint(folder))
