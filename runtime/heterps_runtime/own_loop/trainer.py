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

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from heterps_configs.arguments import PATH, check_callable, check_seed, check_type
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.own_loop import checkpoints, data_sets, steps
from heterps_runtime.own_loop.build import Beginning
from heterps_runtime.own_loop.fitting import Measured
from heterps_runtime.own_loop.model import Inputs
from heterps_runtime.own_loop.parts import Parts
from heterps_runtime.own_loop.plan import check_world
from heterps_runtime.own_loop.ranks import Ranks
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
        check_callable("model", model, "a torch.nn.Module, or a function that returns one")
        check_type("plan", plan, (Plan, *PATH), "a plan (as `place(problem).plan`), or its file")
        check_type("program", program, TrainingProgram, "a heterps.TrainingProgram")
        check_seed(seed)
        plan = plan if isinstance(plan, Plan) else Plan.from_file(plan)
        if program.loss is None:
            raise HeterpsError(
                "program: has no loss; TrainingProgram(loss=...) says what is minimised"
            )
        check_world(plan, int(os.environ.get("WORLD_SIZE", "1")))
        beginning = Beginning.of(model, seed, weights, resume)
        self._parts = Parts(plan, program, Ranks(plan, device), beginning)
        self.measured: Measured | None = None

    @property
    def num_steps(self) -> int:
        """Optimizer steps that are done, those of a checkpoint included."""
        return self._parts.num_steps

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """This rank's optimizer, for learning rate schedules; None before the first step."""
        return None if self._parts.built is None else self._parts.built.owned.optimizer

    @property
    def batch_size(self) -> int:
        """Samples of one step, over all ranks."""
        return self._parts.plan.job.global_batch_size

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
        if steps.has_accumulated(self._parts):
            loss = self.accumulate(inputs, target)
            self.update()
            return loss
        return steps.train(self._parts, inputs, target)

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
        return steps.accumulate(self._parts, inputs, target)

    def update(self) -> None:
        """The optimizer step of the batches that have been accumulated.

        Raises:
            HeterpsError: There are none, or a rank failed.
        """
        steps.update(self._parts)

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
        self.measured = data_sets.fit(self._parts, data, num_steps, checkpoint)
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
        return data_sets.evaluate(self._parts, data)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a checkpoint `step-N` into a folder; complete when it returns.

        Raises:
            HeterpsError: There was no step yet, or it cannot be written.
        """
        parts, built = self._parts, self._parts.built
        if built is None:
            raise HeterpsError("save: nothing has been trained yet")
        if steps.has_accumulated(parts):
            raise HeterpsError("save: gradients have been accumulated; call update before")
        checkpoints.save(
            str(folder),
            built.specification,
            built.owned,
            parts.own_state,
            parts.ranks,
            num_steps=parts.num_steps,
        )
