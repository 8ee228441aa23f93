"""Evaluation: the forward passes of a plan alone, and what its last stages find, gathered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from heterps_runtime.execution.data_feed import DataFeed
from heterps_runtime.execution.executor import Executor
from heterps_runtime.execution.program import Message, Pass
from heterps_runtime.models.losses import Loss
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.training.batches import Batch
from heterps_runtime.training.prepared import loss_of
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.transport.communication import Communicator

# Takes the loss that reads the output, the output and the target.
Measure = Callable[[Loss, Tensor, Tensor], None]


class EvaluatingExecutor(Executor):
    """An executor that can also run the forward passes of its actions alone."""

    def evaluate(self, batches: Mapping[int, Batch], start_s: float, measure: Measure) -> None:
        """Runs them without gradients, with modules in evaluation mode.

        Args:
            batches: Inputs and target of every micro-batch that this device computes.
            start_s: When the pass began (`time.perf_counter`).
            measure: Gets what the last stages return of the samples that there are.
        """
        self._start_step(batches, start_s, 1.0)
        self._clock.start_step(start_s)
        if self._links:
            self._links.start_step(self._step_number)
        modules = list(self._owned.modules.values())
        for module in modules:
            module.eval()
        try:
            with torch.no_grad():
                self._messages.begin(is_forward_only=True)
                for handle, step in self._handled:
                    if isinstance(step, Pass):
                        if step.action.kind == "forward":
                            self._evaluate(step, measure)
                    elif isinstance(step, Message) and step.action.direction == "forward":
                        handle(step)
            self._messages.finish()
        finally:
            for module in modules:
                module.train()

    def _evaluate(self, step: Pass, measure: Measure) -> None:
        cell, micro_batch = step.cell, step.key[1]
        inputs, target = self._batches[micro_batch]
        self._clock.begin()
        outputs = step.module.forward(
            inputs, cell.received, (self._seed_of_run, self._step_number, micro_batch)
        )
        cell.received = ()
        if step.is_last and len(target) and self._tells_loss:
            # Behind the targets that there are, samples fill up an incomplete micro-batch.
            output = outputs[0] if len(outputs[0]) <= len(target) else outputs[0][: len(target)]
            measure(step.module.split_loss or self._loss, output, target)
        elif step.is_last and step.module.split_loss is not None and len(target):
            # All devices of a group compute the loss together.
            step.module.split_loss.total(outputs[0][: len(target)], target)
        self._finish(step)
        if step.behind is not None:
            step.behind.received = outputs
        for message in step.activations:
            message.tensors = outputs


class Evaluator:
    """Evaluates a program's data under the plan of now. All ranks call it together.

    Args:
        program: Its evaluation data, its loss and its metrics.
        specification: Of the plan.
        executor: Of this rank.
        communicator: The processes.
    """

    def __init__(
        self,
        program: TrainingProgram,
        specification: RunSpecification,
        executor: EvaluatingExecutor,
        communicator: Communicator,
    ) -> None:
        self._program, self._specification = program, specification
        self._executor, self._communicator = executor, communicator
        assert specification.profile.source is not None
        self._loss = loss_of(program, specification.profile.source)

    def run(self) -> dict[str, float]:
        """Goes through all the data once.

        Returns:
            The mean loss over its samples, and the metrics by name; the same on every rank.
        """
        program, communicator = self._program, self._communicator
        totals = dict.fromkeys(("loss", *program.metrics), 0.0)
        num_samples = 0

        def measure(loss: Loss, output: Tensor, target: Tensor) -> None:
            nonlocal num_samples
            num_samples += len(target)
            totals["loss"] += float(loss.total(output, target)) / loss.elements(target)
            for name, metric in program.metrics.items():
                totals[name] += float(metric(output, target)) * len(target)

        feed, number = DataFeed.of_evaluation(
            program, self._specification, self._executor, communicator.device
        )
        try:
            for index in range(number):
                batches, start_s = feed.of_step(index), time.perf_counter()
                if self._specification.emulation is not None:
                    start_s = communicator.broadcast_numbers(start_s)[0]
                self._executor.evaluate(batches, start_s, measure)
        finally:
            feed.close()
        rows = communicator.gather_numbers(float(num_samples), *totals.values())
        count = sum(row[0] for row in rows)
        sums = [sum(row[1 + column] for row in rows) for column in range(len(totals))]
        return {name: total / count for name, total in zip(totals, sums, strict=True)}
