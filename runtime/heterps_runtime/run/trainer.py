"""The training loop of one rank: steps, measurements, and the switch to a new plan."""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.execution.cuda_clock import CudaClock
from heterps_runtime.execution.data_feed import DataFeed
from heterps_runtime.execution.emulation import Clock
from heterps_runtime.execution.engines import clock_of, engine_of
from heterps_runtime.execution.evaluation import EvaluatingExecutor, Evaluator
from heterps_runtime.execution.executor import BeforeUpdate, Executor
from heterps_runtime.execution.measured_step import PlanMemory
from heterps_runtime.models.recordings import share_recordings
from heterps_runtime.results.observed_steps import ObservedSteps
from heterps_runtime.results.phases import WARM_UP_STEPS
from heterps_runtime.run.next_plan import NextPlan
from heterps_runtime.specification.devices import remarks_of_missing
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages import batch_norm
from heterps_runtime.stages.build import build_stages
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.stages.stage import StageModule
from heterps_runtime.stages.start_values import Blank, StartValues, start_values
from heterps_runtime.state.migrate import migrate
from heterps_runtime.training.batches import Batch
from heterps_runtime.training.own_state import OwnState
from heterps_runtime.training.prepared import source_under, uncounted_average
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.training.program_file import training_program
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.device_messenger import messenger_for
from heterps_runtime.transport.group_sums import GroupSums, group_sums

if TYPE_CHECKING:
    from heterps_runtime.execution.torch_engine import TorchEngine
    from heterps_runtime.state.checkpointer import Checkpointer

# The first step of a plan whose memory is measured: before it, the optimizer has no state. It is a
# warm-up step, because measuring takes time.
MEASURED_STEP = 1
assert MEASURED_STEP < WARM_UP_STEPS
# Lines of the log about steps of a run, at least.
NUM_LOGGED_STEPS = 10

logger = logging.getLogger(__name__)


class Trainer:
    """Trains under one plan after another. All ranks do everything here together.

    Args:
        specification: The first plan.
        directory: Run directory, where measurements, new plans and results meet.
        communicator: The processes.
        on_step: Called on rank 0 with the figures of each step.
    """

    def __init__(
        self,
        specification: RunSpecification,
        directory: Path,
        communicator: Communicator,
        on_step: Callable[[dict[str, Any]], None] = lambda line: None,
    ) -> None:
        assert communicator.world_size == len(specification.devices)
        self._program = self._own_program(specification)
        self._own_state = OwnState(self._program.state)
        self._specification, self._directory = self._prepared(specification), directory
        self._communicator, self._on_step = communicator, on_step
        self._device = specification.devices[communicator.rank]
        self._is_first_rank = communicator.rank == 0
        self._clock = self._own_clock()
        self._records: deque[list[ActionRecord]] = deque(maxlen=specification.num_timelines)
        self._next = NextPlan(directory, communicator)
        # Over this rank's tensor-parallel group.
        self._sums: GroupSums | None = None
        self._checkpointer: Checkpointer | None = None
        self._feed: DataFeed | None = None
        self._is_over = False
        self._open()

    def _open(self) -> None:
        """Makes what the plan needs."""
        self._begin_generation(step=self._start())

    def _start(self) -> int:
        """Makes the stages and gives them their values; returns the first step."""
        specification, communicator = self._specification, self._communicator
        start = start_values(specification)
        assert specification.profile.source is not None
        share_recordings(specification.profile.source, specification.plan.job, communicator)
        self._sums = group_sums(specification, self._device, communicator)
        modules = self._built(start)
        remarks = [
            *start.remarks(),
            *uncounted_average(self._program, specification.plan.job),
            *remarks_of_missing(specification.wanted_devices, communicator.places),
            *batch_norm.remarks(
                communicator, has_any=any(module.has_batch_norm for module in modules.values())
            ),
        ]
        for remark in remarks:
            self._say(remark)
        self.owned = OwnedStages(specification, modules, communicator, self._program)
        self._checkpointer = self._start_checkpoints()
        return specification.first_step

    def run(self) -> None:
        """Runs all steps, and writes this rank's result."""
        for step in range(self._specification.first_step, self._specification.num_steps):
            self._switch_if_asked(step)
            self._run_step(step)
            self._after_step(step)
            self._save_if_due(step + 1)
            if self._is_over:
                break
        self._finish()

    def _save_if_due(self, num_done: int) -> None:
        """Saves where so many steps are done and it is time to."""
        if self._checkpointer is not None:
            assert self._feed is not None
            position = self._feed.position(num_done)
            self._checkpointer.after_step(
                num_done, self.owned, self._specification, position, self._own_state.encoded
            )

    def _after_step(self, step: int) -> None:
        """Evaluates where it is time to, and asks the callbacks."""
        program, done = self._program, step + 1
        figures = {"loss": self._loss}
        if program.evaluate_every and done % program.evaluate_every == 0:
            assert isinstance(self._engine, EvaluatingExecutor)
            found = Evaluator(program, self._specification, self._engine, self._communicator).run()
            figures |= {f"evaluation {name}": value for name, value in found.items()}
            if self._is_first_rank:
                self._on_step({"evaluation": {"step": done, "figures": found}})
        if not program.callbacks:
            return
        answers = [callback(done, figures) for callback in program.callbacks]
        if self._communicator.broadcast_numbers(float(any(answers)))[0]:
            # What is due after the last step is due now.
            self._is_over = True
            self._specification = self._specification.changed(num_steps=done)

    def _own_program(self, specification: RunSpecification) -> TrainingProgram:
        """The user's program, or one that leaves everything to the plan."""
        return training_program(specification.program)

    def _prepared(self, specification: RunSpecification) -> RunSpecification:
        """What the launcher wrote, with what the user's program says."""
        program, profile = self._program, specification.profile
        assert profile.source is not None
        norm = specification.max_gradient_norm or program.max_gradient_norm
        source = source_under(program, profile.source)
        return specification.changed(profile=profile.changed(source=source), max_gradient_norm=norm)

    def _built(self, start: StartValues) -> dict[str, StageModule]:
        """This rank's stages under the plan of now."""
        return build_stages(
            self._specification,
            self._device,
            start,
            self._communicator.device,
            self._sums,
            has_own_loss=self._program.has_own_loss,
        )

    def _finish(self) -> None:
        """Leaves the result, and ends the last save; where that fails, the result stays."""
        write_text(
            self._directory / f"result-{self._communicator.rank}.json",
            json.dumps(self._result()),
        )
        self._close_feed()
        self._end_saves()
        logger.info("done")

    def _end_saves(self) -> None:
        """Tells that the last save failed: all steps are done, and who asked for it decides."""
        try:
            if self._checkpointer is not None:
                self._checkpointer.close()
        except HeterpsError as error:
            if self._is_first_rank:
                self._on_step({"checkpoint_error": str(error)})

    def _close_feed(self) -> None:
        """Nothing more is read for the plan of now."""
        if self._feed is not None:
            self._feed.close()

    def _say(self, remark: str) -> None:
        """Tells the user, once for all ranks."""
        if self._is_first_rank:
            self._on_step({"message": remark})

    def _own_clock(self) -> Clock:
        return clock_of(self._specification, self._device, self._communicator.device)

    def _start_checkpoints(self) -> Checkpointer | None:
        """Loads the checkpoint that the run goes on from; what saves, where it is asked for."""
        specification = self._specification
        if specification.resume_from is None and specification.checkpoint is None:
            return None
        from heterps_runtime.state.checkpoint import restore_stages

        if specification.resume_from is not None:
            document = restore_stages(specification.resume_from, self.owned)
            for remark in self._own_state.load(document.program_state):
                self._say(remark)
        return None if specification.checkpoint is None else self._new_checkpointer()

    def _new_checkpointer(self) -> Checkpointer:
        from heterps_runtime.state.checkpointer import Checkpointer

        return Checkpointer(self._specification, self._communicator, self._on_step)

    def _begin_generation(self, step: int) -> None:
        specification, device = self._specification, self._device
        self._first_step = step
        self._records.clear()
        self._memory = PlanMemory(specification, device, self._communicator, self._on_step)
        layers = ", ".join(specification.layers_of(device)) or "idle"
        logger.info("plan %d from step %d on: %s", specification.generation, step + 1, layers)
        self.owned.begin(step)
        self._engine = self._engine_of(specification, step)
        self._close_feed()
        self._feed = DataFeed.of_training(
            self._program, specification, self._engine, self._communicator.device
        )
        self._steps = ObservedSteps(specification, device, self._communicator, step, self._sums)

    def _engine_of(
        self, specification: RunSpecification, step: int
    ) -> EvaluatingExecutor | TorchEngine:
        return engine_of(
            specification,
            self.owned,
            messenger_for(specification, self._communicator),
            self._clock,
            self._program,
            device=self._device,
            first_step=step,
            before_update=self._before_update(),
        )

    def _before_update(self) -> BeforeUpdate | None:
        """What the ranks do between the gradients of a step and its update."""
        return None

    def _run_step(self, step: int) -> None:
        specification = self._specification
        batches = self._read(step)
        self._communicator.barrier()
        start_s = time.perf_counter()
        if specification.emulation:
            # One start for all: processes of one host share this clock.
            start_s = self._communicator.broadcast_numbers(start_s)[0]
        slowdown = specification.group_slowdown(self._device, step)
        engine = self._engine
        self._steps.begin()
        if step == self._first_step + MEASURED_STEP and isinstance(engine, Executor):
            loss, records = self._memory.measure(engine, self.owned, batches, start_s, slowdown)
        else:
            loss, records = engine.step(batches, start_s, slowdown)
        if isinstance(self._clock, CudaClock):
            records = self._clock.settled(records)
        seconds = time.perf_counter() - start_s
        # The one gathering of a step takes all figures of it.
        row = self._steps.row(step, start_s, records)
        rows = self._communicator.gather_numbers(loss, seconds, *row)
        self._records.append(records)
        logged = max(1, (specification.num_steps - specification.first_step) // NUM_LOGGED_STEPS)
        if (step + 1) % logged == 0 or step == self._first_step:
            logger.info("step %d took %.4g s, %.4g s of them computing", step + 1, seconds, row[0])
        self._loss = sum(row[0] for row in rows)
        self._observe(step, rows)

    def _read(self, step: int) -> dict[int, Batch]:
        """What this rank computes with in a step."""
        assert self._feed is not None
        return self._feed.of_step(step)

    def _observe(self, step: int, rows: Sequence[Sequence[float]]) -> None:
        """Takes what a step brought; `rows` holds loss, seconds and figures of each rank."""
        step_time_s = self._step_time_s = max(row[1] for row in rows)
        if self._is_first_rank:
            self._on_step(
                {
                    "step": step,
                    "loss": self._loss,
                    "step_time_s": step_time_s,
                    "generation": self._specification.generation,
                    **self._steps.figures([row[2:] for row in rows]),
                }
            )
        if step - self._first_step == WARM_UP_STEPS - 1:
            self._clock.forget_overruns()
        self._steps.count(step, step_time_s)
        self._steps.publish_if_due(step, self._directory)

    # -- a new plan

    def _switch_if_asked(self, step: int) -> None:
        specification = self._specification
        if specification.is_online and self._next.is_due(specification.generation, step):
            self._switch(step)

    def _switch(self, step: int) -> None:
        """Moves to the new plan; takes effect before `step`."""
        started_s = time.perf_counter()
        self._specification = self._prepared(self._next.take())
        self._sums = group_sums(self._specification, self._device, self._communicator)
        modules = self._built(Blank())
        old, self.owned = (
            self.owned,
            OwnedStages(self._specification, modules, self._communicator, self._program),
        )
        migration = migrate(old, self.owned, self._communicator)
        self._begin_generation(step)
        seconds = time.perf_counter() - started_s
        rows = self._communicator.gather_numbers(seconds, migration.bytes_received)
        if self._is_first_rank:
            self._on_step(
                {
                    "switched_to": self._specification.generation,
                    "step": step,
                    "seconds": max(row[0] for row in rows),
                    "bytes_moved": int(sum(row[1] for row in rows)),
                }
            )

    def _result(self) -> dict[str, Any]:
        clock = self._clock
        return {
            "device": self._device,
            "stages": [entry.model_dump() for entry in self._steps.times.stages()],
            "optimizer_s": self._steps.times.optimizer_s(),
            "num_actions": clock.num_actions,
            "num_overruns": clock.num_overruns,
            "worst_overrun_s": clock.worst_overrun_s,
            **self._memory.result(),
            "trace": self._records[-1] if self._records else [],
            "earlier_traces": list(self._records)[:-1],
        }
