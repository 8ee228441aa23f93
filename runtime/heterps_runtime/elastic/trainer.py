"""The training loop of one rank in one generation of an elastic run.

It differs from the usual one in three things: the first values come from wherever they still are
(`heterps_runtime.elastic.state_recovery`), a step is committed by all ranks before any of them
updates (`heterps_runtime.elastic.holding`), and the generation may end at a step boundary, agreed
by all.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from heterps_configs.errors import HeterpsError
from heterps_runtime.elastic import state_sources
from heterps_runtime.elastic.holding import Holding
from heterps_runtime.elastic.state_recovery import recover
from heterps_runtime.execution.executor import BeforeUpdate, Executor
from heterps_runtime.run.trainer import Trainer
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.stages.start_values import Blank
from heterps_runtime.state.checkpoint_tiers import CheckpointTiers
from heterps_runtime.state.checkpointer import Checkpointer
from heterps_runtime.training.own_state import Encoded
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.group_sums import group_sums


class _Told(NamedTuple):
    """What a rank says of its recovery."""

    bytes_by_source: dict[str, int]
    seconds: float
    remarks: list[str]


# What ranks tell one another while they recover.
MESSAGES = (state_sources.Holding, state_sources.SavedNames, bool, tuple[int, str], _Told)


class ElasticTrainer(Trainer):
    """Trains until the last step, or until the generation ends.

    Args:
        specification: Of the generation.
        directory: Run directory.
        communicator: Its ranks.
        on_step: Called on rank 0 with the figures of each step, and with what else happens.
        holding: What this process holds, also after the end of the generation.
        tiers: Where its checkpoints are.
        is_ending: Whether the generation should end at the next step boundary.
    """

    def __init__(
        self,
        specification: RunSpecification,
        directory: Path,
        communicator: Communicator,
        on_step: Callable[[dict[str, Any]], None],
        *,
        holding: Holding,
        tiers: CheckpointTiers,
        is_ending: Callable[[], bool],
    ) -> None:
        self._holding, self._tiers, self._asked_to_end = holding, tiers, is_ending
        self._is_ending = False
        self._num_read = 0
        self._phase = "beginning"
        super().__init__(specification, directory, communicator, on_step)
        self._own_state = holding.own_state = holding.own_state or self._own_state

    def _open(self) -> None:
        """Nothing yet: `train` begins, so that whoever watches this rank knows it by then."""

    def train(self) -> bool:
        """Gets the values, and runs steps; returns whether the last step is done."""
        specification = self._specification
        super()._open()
        self._phase = "training"
        for step in range(self._first_step, specification.num_steps):
            self._holding.begin_step()
            self._run_step(step)
            self._after_step(step)
            self._own_state.note(step + 1)
            self._save_if_due(step + 1)
            if self._is_over:
                break
            if self._is_ending and step + 1 < specification.num_steps:
                self._end_generation()
                return False
        if self._first_step == specification.num_steps:
            # A rank was lost between the last step and the end of its checkpoint.
            self._save_if_due(specification.num_steps)
        self._finish()
        return True

    def abandon(self) -> None:
        """Lets go of a generation that has been broken; its connections are closed already."""
        if self._executor is not None:
            self._executor.abandon()
        self._close_feed()
        if self._checkpointer is not None:
            self._checkpointer.abandon()

    @property
    def progress(self) -> str:
        """What this rank does; and counts, which change whenever it has done something."""
        done = -1 if self._executor is None else self._executor.num_done
        return f"{self._phase} {self._holding.step} {done} {self._num_read}"

    @property
    def _executor(self) -> Executor | None:
        """None while the generation begins."""
        engine = getattr(self, "_engine", None)
        return engine if isinstance(engine, Executor) else None

    def _start(self) -> int:
        specification, communicator = self._specification, self._communicator
        if specification.generation == 0:
            step = super()._start()
            self._own_state.note(step)
            self._holding.take(self.owned, step)
            return step
        began_s = time.monotonic()
        self._phase = "settling"
        known = self._holding.settle(communicator)
        if known is not None and self._is_first_rank:
            self._on_step({"committed": known._asdict()})
        self._phase = "building"
        self._sums = group_sums(specification, self._device, communicator)
        modules = self._built(Blank())
        self.owned = OwnedStages(specification, modules, communicator, self._program)
        self._phase = "recovering"
        built_s = time.monotonic()
        found = recover(
            self._holding.state,
            self._holding.step,
            specification,
            self.owned,
            communicator,
            self._tiers,
            on_progress=self._note_read,
        )
        remarks = self._own_state.go_to(
            found.step,
            lambda own: communicator.gather(own, tuple[int, str]),
            self._saved_program_state,
        )
        for remark in remarks:
            self._say(remark)
        self._holding.take(self.owned, found.step)
        if specification.checkpoint is not None:
            self._checkpointer = self._new_checkpointer()
        own = _Told(found.bytes_by_source, found.seconds, list(found.remarks))
        gathered = communicator.gather(own, _Told)
        if self._is_first_rank:
            self._tell_recovered(found.step, built_s - began_s, gathered)
        return found.step

    def _saved_program_state(self, step: int) -> Encoded | None:
        document = self._tiers.document(step)
        return None if document is None else document.program_state

    def _new_checkpointer(self) -> Checkpointer:
        return Checkpointer(self._specification, self._communicator, self._on_step, self._tiers)

    def _tell_recovered(self, step: int, build_s: float, gathered: list[_Told]) -> None:
        num_bytes: dict[str, int] = {}
        for own, _, remarks in gathered:
            for source, count in own.items():
                num_bytes[source] = num_bytes.get(source, 0) + count
            for remark in remarks:
                self._on_step({"message": remark})
        self._on_step(
            {
                "recovered": self._specification.generation,
                "from_step": step,
                "at_s": time.monotonic(),
                "build_s": build_s,
                "state_s": max(seconds for _, seconds, _ in gathered),
                "bytes_by_source": num_bytes,
            }
        )

    def _note_read(self, *_: object) -> None:
        self._num_read += 1

    def _before_update(self) -> BeforeUpdate | None:
        return self._commit

    def _commit(self, loss: float, time_s: float) -> float:
        """Returns when all ranks have complete gradients; the caller updates then."""
        self._holding.prepare()
        wants_end = self._is_first_rank and self._asked_to_end()
        rows = self._communicator.gather_numbers(loss, time_s, float(wants_end))
        self._holding.commit(sum(row[0] for row in rows), self._specification.generation)
        self._is_ending = bool(rows[0][2])
        # Only processes of one machine share a clock, and only emulated devices wait by it.
        return time_s if self._specification.emulation is None else max(row[1] for row in rows)

    def _end_saves(self) -> None:
        """A lost rank may be why the last save failed; then others repeat it."""
        if self._checkpointer is not None:
            self._checkpointer.close()

    def _end_generation(self) -> None:
        self._close_feed()
        if self._checkpointer is not None:
            # What it has to say it has said; a save that failed ends no run.
            with contextlib.suppress(HeterpsError):
                self._checkpointer.close()
