"""Training and evaluation over a whole data set, which the ranks read themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.execution.evaluation import Evaluator
from heterps_runtime.own_loop import checkpoints
from heterps_runtime.own_loop.fitting import Fitting, Measured
from heterps_runtime.own_loop.parts import Parts


def fit(parts: Parts, data: Any, num_steps: int, checkpoint: CheckpointSettings | None) -> Measured:
    """See `heterps_runtime.own_loop.trainer.PipelineTrainer.fit`."""
    program, ranks = parts.program, parts.ranks
    if data is not None:
        program = dataclasses.replace(program, data=data)
    if program.data is None:
        raise HeterpsError("fit: there is no data; give it here or in the program")
    built = parts.of_data(program, program.data)
    specification = built.specification.changed(
        num_steps=num_steps, first_step=parts.num_steps, checkpoint=checkpoint
    )
    if checkpoint is not None:
        checkpoints.prepare(checkpoint, ranks)

    def note_done(num_steps: int) -> None:
        parts.num_steps = num_steps

    with parts.failing_together():
        measured = Fitting(
            specification,
            ranks.communicator,
            program,
            built,
            together=ranks.together,
            on_done=note_done,
        ).fit()
    built.executor.num_samples = parts.plan.job.global_batch_size
    return measured


def evaluate(parts: Parts, data: Any) -> dict[str, float]:
    """See `heterps_runtime.own_loop.trainer.PipelineTrainer.evaluate`."""
    program = parts.program
    if data is not None:
        program = dataclasses.replace(program, evaluation_data=data)
    if program.evaluation_data is None:
        raise HeterpsError("evaluate: there is no data; give it here or in the program")
    built = parts.of_data(program, program.evaluation_data)
    with parts.failing_together():
        found = Evaluator(
            program, built.specification, built.executor, parts.ranks.communicator
        ).run()
    built.executor.num_samples = parts.plan.job.global_batch_size
    return found
