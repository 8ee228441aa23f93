"""Trains a user's own model under a plan, inside the user's own loop.

    program = TrainingProgram(
        loss=loss_function,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-4),
    )
    trainer = PipelineTrainer(make_model, "plan.yaml", program)
    for inputs, target in loader:
        loss = trainer.step(inputs, target)
    trainer.save("checkpoints")

Started by `torchrun --nproc-per-node N` with N devices in the plan; with one device also by plain
`python`.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.execution.evaluation import Evaluator
from heterps_runtime.own_loop import checkpoints
from heterps_runtime.own_loop.accumulation import AccumulatingExecutor
from heterps_runtime.own_loop.build import Beginning, Builder, Built
from heterps_runtime.own_loop.fitting import Fitting, Measured
from heterps_runtime.own_loop.micro_batches import (
    check_samples,
    checked_inputs,
    own_micro_batches,
)
from heterps_runtime.own_loop.model import Inputs
from heterps_runtime.own_loop.plan import check_world
from heterps_runtime.own_loop.ranks import Ranks
from heterps_runtime.training.batches import Batch
from heterps_runtime.training.own_state import OwnState
from heterps_runtime.training.prepared import first_batch
from heterps_runtime.training.program import TrainingProgram


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
        program: Loss and optimizer, and what else there is to the training: clipping, groups of
            parameters, a schedule, a moving average, data for `fit` and `evaluate`. It needs a
            loss; its `model` is not looked at.
        seed: Of initial parameters and dropout.
        weights: Folder of safetensors files that the parameters are read from; or a `state_dict`,
            the same on every rank.
        resume: Checkpoint, or folder of them, that the training goes on from.
        device: Where this rank computes; by default as the plan's cluster says: `cuda:i` for the
            i-th GPU of its node, where there is one, else the CPU.

    Attributes:
        num_steps: Optimizer steps that are done, those of a checkpoint included.
        measured: Of the last `fit`: step times, stages, memory, timeline; None before.

    Raises:
        HeterpsError: No such plan or device, no loss, or another number of processes than the
            plan's devices.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        plan: str | os.PathLike[str] | Plan,
        program: TrainingProgram,
        *,
        seed: int = 0,
        weights: str | os.PathLike[str] | Mapping[str, Tensor] | None = None,
        resume: str | os.PathLike[str] | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self._plan = plan if isinstance(plan, Plan) else Plan.from_file(plan)
        if program.loss is None:
            raise HeterpsError("program: has no loss")
        self._program, self._own_state = program, OwnState(program.state)
        check_world(self._plan, int(os.environ.get("WORLD_SIZE", "1")))
        beginning = Beginning.of(model, seed, weights, resume)
        self._ranks = Ranks(self._plan, device)
        self._parts: Built | None = None
        self.measured: Measured | None = None
        self.num_steps, origin = checkpoints.progress(beginning.resume, self._ranks)
        self._builder = Builder(
            self._plan, self._program, self._own_state, self._ranks, beginning, origin
        )

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
        with self._ranks.failures.shared(self._let_go):
            own = executor.accumulate(batches, time.perf_counter())
            rows = self._ranks.communicator.gather_numbers(own)
        return sum(row[0] for row in rows)

    def update(self) -> None:
        """The optimizer step of the batches that have been accumulated.

        Raises:
            HeterpsError: There are none, or a rank failed.
        """
        if self._executor is None or not self._executor.num_batches:
            raise HeterpsError("update: nothing has been accumulated; call accumulate before")
        with self._ranks.failures.shared(self._let_go):
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
        specification = self._parts.specification.changed(
            num_steps=num_steps, first_step=self.num_steps, checkpoint=checkpoint
        )
        if checkpoint is not None:
            checkpoints.prepare(checkpoint, self._ranks)
        with self._ranks.failures.shared(self._let_go):
            loop = Fitting(
                specification,
                self._ranks.communicator,
                program,
                self._parts,
                together=self._ranks.together,
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
        assert self._parts is not None
        executor = self._parts.executor
        with self._ranks.failures.shared(self._let_go):
            found = Evaluator(
                program, self._parts.specification, executor, self._ranks.communicator
            ).run()
        executor.num_samples = self.batch_size
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
            inputs, target = self._ranks.together(lambda: first_batch(program, data, size))
            self._parts = self._builder.build(inputs, target, self.num_steps)

    def _trained(self, executor: AccumulatingExecutor, batches: dict[int, Batch]) -> float:
        """One step; the loss of all ranks."""
        with self._ranks.failures.shared(self._let_go):
            own, _ = executor.step(batches, time.perf_counter())
            rows = self._ranks.communicator.gather_numbers(own)
        self.num_steps += 1
        return sum(row[0] for row in rows)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a checkpoint `step-N` into a folder; complete when it returns.

        Raises:
            HeterpsError: There was no step yet, or it cannot be written.
        """
        if self._parts is None:
            raise HeterpsError("save: nothing has been trained yet")
        if self._parts.executor.num_batches:
            raise HeterpsError("save: gradients have been accumulated; call update before")
        checkpoints.save(
            str(folder),
            self._parts.specification,
            self._parts.owned,
            self._own_state,
            self._ranks,
            num_steps=self.num_steps,
        )

    def _cut(self, inputs: Inputs, target: Tensor) -> tuple[AccumulatingExecutor, dict[int, Batch]]:
        """This rank's micro-batches of a batch; builds its stages the first time."""
        job, ranks = self._plan.job, self._ranks
        named = ranks.together(lambda: checked_inputs(inputs, target, self.batch_size))
        is_new = self._parts is None
        if self._parts is None:
            self._parts = self._builder.build(inputs, target, self.num_steps)
        executor, device = self._parts.executor, ranks.communicator.device
        batches = own_micro_batches(
            named, target, job.micro_batch_sizes, executor.micro_batches, device
        )
        if is_new:
            is_last = any(module.is_last for module in self._parts.owned.modules.values())
            check_samples(batches, ranks, self._plan.devices, with_target=is_last)
        return executor, batches

    def _note_done(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def _let_go(self) -> None:
        """Messages under way keep connections open, and their callers waiting."""
        if self._executor is not None:
            self._executor.abandon()
