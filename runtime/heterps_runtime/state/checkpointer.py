"""Saves while training goes on: tensors are copied between two steps, a thread writes the copies.

The thread's messages have a process group of their own, so that they cannot meet those of training.
A save that fails is reported, and the run goes on; earlier checkpoints stay as they are. Only where
the last save of a run fails, the command fails, and keeps the result.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from heterps_configs.errors import HeterpsError
from heterps_runtime.process.allocator import return_freed_memory
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.state.checkpoint import buffers_of, counts_elsewhere, owned_tensors, pieces_of
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    drop_unfinished,
    layer_sizes,
    publish,
    unfinished_path,
)
from heterps_runtime.state.checkpoint_storage import write_tensors
from heterps_runtime.state.checkpoint_tiers import CheckpointTiers
from heterps_runtime.tensor_parallel.slices import TensorSlice
from heterps_runtime.training.own_state import Encoded
from heterps_runtime.training.sample_order import Position
from heterps_runtime.transport.communication import Communicator


class _Held(NamedTuple):
    """What the ranks hold under one plan.

    Attributes:
        buffers: Persistent buffers that no smaller rank holds.
        tied_names: Other names of the model's tied parameters; a rank without a stage knows none.
    """

    owned: OwnedStages
    buffers: list[str]
    tied_names: dict[str, str]


class Checkpointer:
    """Saves the state of one rank. All ranks call every method together.

    Args:
        specification: Of the run; says where and how often.
        communicator: The processes.
        on_event: Called on rank 0, between two steps, with what became of a save.
        tiers: Other places that keep what is saved, and outlive this object; None: the remote
            storage of the settings, where there is one.
    """

    def __init__(
        self,
        specification: RunSpecification,
        communicator: Communicator,
        on_event: Callable[[dict[str, Any]], None],
        tiers: CheckpointTiers | None = None,
    ) -> None:
        assert specification.checkpoint is not None
        self._settings = settings = specification.checkpoint
        self._has_own_tiers = tiers is None
        self._tiers = tiers or CheckpointTiers(
            settings, specification.resume_from, keeps_copies=False
        )
        if communicator.rank == 0:
            self._tiers.catch_up()
        # A reference run starts from it, too, when this one has ended.
        self._origin = specification.resume_from
        self._folder = Path(self._settings.folder)
        self._communicator, self._on_event = communicator, on_event
        self._group: dist.ProcessGroup = communicator.new_group()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: tuple[int, Future[Path | None]] | None = None
        self._failure: HeterpsError | None = None
        self._held: _Held | None = None

    def after_step(
        self,
        step: int,
        owned: OwnedStages,
        specification: RunSpecification,
        position: Position | None = None,
        program_state: Callable[[], Encoded] = dict,
    ) -> None:
        """Saves where it is time to.

        Args:
            step: Steps that are done.
            owned: What this rank trains now.
            specification: The plan that runs now.
            position: In a user's data.
            program_state: What there is of it, rank 0's counts.
        """
        if self._saving is not None and self._saving[1].done():
            self._end_save()
        self._tell_remarks(self._tiers.remarks())
        if self._settings.is_due(step, specification.num_steps):
            # One save at a time: two would mix their messages, and need the memory of two copies.
            self._end_save()
            held = self._ask(owned)
            tensors = owned_tensors(owned, held.buffers)
            pieces = pieces_of(owned, tensors)
            self._tiers.hold(step, {**tensors, **counts_elsewhere(owned)}, pieces)
            document = _document(step, held.tied_names, specification, position)
            if self._communicator.rank == 0:
                document = document.changed(program_state=program_state())
            generation = specification.generation
            self._saving = (
                step,
                self._thread.submit(self._write, tensors, pieces, document, generation),
            )

    def close(self) -> None:
        """Waits for the last save, and for its upload where nobody else does.

        Raises:
            HeterpsError: It could not be written.
        """
        self._end_save()
        self._thread.shutdown()
        if self._has_own_tiers:
            self._tell_remarks(self._tiers.close())
        if self._failure is not None:
            raise self._failure

    def abandon(self, timeout_s: float = 0.05) -> None:
        """Gives up a save under way, of a group that is broken and severed; never raises.

        The thread may still write for a while; then it finds its connections closed.

        Args:
            timeout_s: How long to wait for it, in case that it is done.
        """
        if self._saving is not None:
            (step, future), self._saving = self._saving, None
            is_cancelled = future.cancel()
            wait([future], timeout=timeout_s)
            if not is_cancelled and future.done() and future.exception() is None:
                self._tiers.saved(step, future.result())
        self._thread.shutdown(wait=False)

    def _write(
        self,
        tensors: dict[str, Tensor],
        pieces: dict[str, TensorSlice],
        document: CheckpointDocument,
        generation: int,
    ) -> Path | None:
        """In the thread; the path on rank 0."""
        rank, is_first = self._communicator.rank, self._communicator.rank == 0
        path = unfinished_path(self._folder, document.step, generation)
        if is_first:
            drop_unfinished(self._folder, generation)
        try:
            write_tensors(path, tensors, self._group, rank, pieces)
            if not is_first:
                return None
            origin = () if self._origin is None else (self._origin,)
            needed = (*origin, *self._tiers.needed)
            return publish(self._folder, document, self._settings.keep, needed, generation)
        except Exception:
            if is_first:
                # Nothing else: a later generation may be writing by now.
                shutil.rmtree(path, ignore_errors=True)
            raise
        finally:
            return_freed_memory()

    def _end_save(self) -> None:
        """Waits for the save under way, and reports it."""
        if self._saving is None:
            return
        (step, future), self._saving = self._saving, None
        self._failure = None
        event: dict[str, Any] = {"step": step}
        try:
            path = future.result()
            event["checkpoint"] = str(path)
            self._tiers.saved(step, path)
        except (HeterpsError, OSError) as error:
            self._tiers.failed(step)
            why = error.strerror if isinstance(error, OSError) else error
            self._failure = HeterpsError(
                f"the checkpoint after step {step} cannot be written to {self._folder}: {why}"
            )
            event["message"] = str(self._failure)
        if self._communicator.rank == 0:
            self._on_event(event)

    def _tell_remarks(self, remarks: Iterable[str]) -> None:
        for remark in remarks:
            self._on_event({"message": remark})

    def _ask(self, owned: OwnedStages) -> _Held:
        """Asks all ranks, once for each plan."""
        if self._held is None or self._held.owned is not owned:
            aliases = {a: n for stage in owned.modules.values() for a, n in stage.aliases.items()}
            gathered = self._communicator.gather(
                (sorted(buffers_of(owned)), aliases, owned.group),
                tuple[list[str], dict[str, str], tuple[int, ...]],
            )
            rank = self._communicator.rank
            self._held = _Held(
                owned,
                buffers_saved_by(rank, [(own, group) for own, _, group in gathered], owned.slices),
                {alias: name for _, own, _ in gathered for alias, name in own.items()},
            )
        return self._held


def buffers_saved_by(
    rank: int, held: Sequence[tuple[Collection[str], Sequence[int]]], slices: Collection[str]
) -> list[str]:
    """Names of the buffers that a rank saves: it, or its group, is the first that has them.

    Args:
        rank: The one that asks.
        held: Of each rank, the buffers that it has, and the ranks of its group.
        slices: Names of what it has slices of: each rank of its group has one of its own.
    """
    own, group = held[rank]
    first = {name: min(r for r, (there, _) in enumerate(held) if name in there) for name in own}
    return [
        name
        for name in sorted(own)
        if (min(held[first[name]][1]) == min(group) if name in slices else first[name] == rank)
    ]


def _document(
    step: int,
    tied_names: dict[str, str],
    specification: RunSpecification,
    position: Position | None,
) -> CheckpointDocument:
    return CheckpointDocument(
        step=step,
        seed=specification.seed,
        learning_rate=specification.learning_rate,
        max_gradient_norm=specification.max_gradient_norm,
        plan=specification.plan,
        num_ranks=len(specification.devices),
        layers=layer_sizes(specification.profile),
        tied_names=tied_names,
        program=None if specification.program is None else specification.program.reference,
        data_position=position,
    )
