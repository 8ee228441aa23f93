"""`PipelineTrainer.fit`: the training loop of `heterps run`, in processes that a user has started.

What differs: the stages are there already, data that cannot be read is an error of all ranks, and
what was measured is gathered instead of written into a run directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from heterps_configs.documents.estimate import TimelineEvent
from heterps_runtime.execution.emulation import Clock
from heterps_runtime.execution.evaluation import EvaluatingExecutor
from heterps_runtime.own_loop.build import Built
from heterps_runtime.results.measurements import StageTimes
from heterps_runtime.results.result import Evaluation
from heterps_runtime.results.step_figures import measured_timeline
from heterps_runtime.run.trainer import Trainer
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.state.checkpointer import Checkpointer
from heterps_runtime.training.batches import Batch
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.transport.communication import Communicator

# Runs the same on all ranks; where it fails on one, all raise the same error.
Together = Callable[[Callable[[], dict[int, Batch]]], dict[int, Batch]]


class Measured(NamedTuple):
    """What a `fit` measured; the same on every rank.

    Attributes:
        losses: Mean loss of each step.
        step_times_s: Of each step, that of the slowest rank.
        evaluations: Of the program's evaluation data, in order.
        stages: Median seconds of each stage on each device, without warm-up.
        memory_bytes: Most that each device held in a step; empty where there was only one step.
        timeline: The actions of the last step.
    """

    losses: tuple[float, ...]
    step_times_s: tuple[float, ...]
    evaluations: tuple[Evaluation, ...]
    stages: tuple[StageTimes, ...]
    memory_bytes: Mapping[str, int]
    timeline: tuple[TimelineEvent, ...]


class Fitting(Trainer):
    """The loop of one `fit`.

    Args:
        specification: With the steps of this fit, and where it saves.
        communicator: The processes.
        program: Its data are what is trained on.
        built: What there is.
        together: Turns one rank's error into that of all.
        on_done: Called with the number of steps that are done, after each.
    """

    def __init__(
        self,
        specification: RunSpecification,
        communicator: Communicator,
        program: TrainingProgram,
        built: Built,
        *,
        together: Together,
        on_done: Callable[[int], None],
    ) -> None:
        self._given, self._built_parts = program, built
        self._together, self._on_done = together, on_done
        self._losses: list[float] = []
        self._step_times_s: list[float] = []
        self._evaluations: list[Evaluation] = []
        # It publishes nothing, so that it needs no directory.
        super().__init__(specification, Path(), communicator, self._take)

    def fit(self) -> Measured:
        """Runs all steps."""
        try:
            self.run()
        finally:
            self._close_feed()
        return self._measured()

    def _own_program(self, specification: RunSpecification) -> TrainingProgram:
        return self._given

    def _prepared(self, specification: RunSpecification) -> RunSpecification:
        return specification

    def _own_clock(self) -> Clock:
        return self._built_parts.clock

    def _start(self) -> int:
        built = self._built_parts
        self.owned, self._sums = built.owned, built.sums
        if self._specification.checkpoint is not None:
            self._checkpointer = Checkpointer(
                self._specification, self._communicator, lambda event: None
            )
        return self._specification.first_step

    def _engine_of(self, specification: RunSpecification, step: int) -> EvaluatingExecutor:
        return self._built_parts.executor

    def _read(self, step: int) -> dict[int, Batch]:
        return self._together(lambda: super(Fitting, self)._read(step))

    def _run_step(self, step: int) -> None:
        super()._run_step(step)
        self._losses.append(self._loss)
        self._step_times_s.append(self._step_time_s)
        self._on_done(step + 1)

    def _take(self, line: dict[str, Any]) -> None:
        """What rank 0 would tell a launcher."""
        if "evaluation" in line:
            self._evaluations.append(Evaluation(**line["evaluation"]))

    def _finish(self) -> None:
        self._close_feed()
        if self._checkpointer is not None:
            self._checkpointer.close()

    def _measured(self) -> Measured:
        told = [each.model_dump() for each in self._evaluations]
        own = json.dumps({**self._result(), "evaluations": told})
        ranks = [json.loads(text) for text in self._communicator.gather(own, str)]
        return Measured(
            losses=tuple(self._losses),
            step_times_s=tuple(self._step_times_s),
            evaluations=tuple(Evaluation(**entry) for entry in ranks[0]["evaluations"]),
            stages=tuple(StageTimes(**entry) for rank in ranks for entry in rank["stages"]),
            memory_bytes={
                rank["device"]: rank["memory"]["peak_bytes"] for rank in ranks if rank["memory"]
            },
            timeline=measured_timeline(ranks, [rank["trace"] for rank in ranks]),
        )
