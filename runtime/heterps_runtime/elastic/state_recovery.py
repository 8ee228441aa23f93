"""Recovery: the ranks of a new generation bring together the state that their stages need.

Each tensor has one source, the nearest that holds it: this rank (not a byte moves), another rank
that is alive, the memory snapshot of a checkpoint, a local checkpoint, a remote one,
initialisation. Where ranks hold slices, each part of a tensor has one: a rank gets rows that nobody
has together from all that have some of them. Training goes on at the newest step at which every
tensor has a source; only where nobody alive holds some tensor, or a part of it, that is a step
back, for all ranks. (Local first: AutoHet, 2025.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple

from heterps_configs.errors import HeterpsError
from heterps_runtime.elastic.state_sources import (
    Holding,
    Needed,
    SavedNames,
    live_step,
    newest_step,
    nothing_left,
)
from heterps_runtime.models.build import build_module
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.stages.start_values import sliced_values, start_values
from heterps_runtime.state.checkpoint_tiers import CheckpointTiers, SavedStep
from heterps_runtime.state.layout import (
    VALUE,
    HeldState,
    State,
    state_bytes,
)
from heterps_runtime.state.migrate import Wanted, gathered_state, install
from heterps_runtime.state.partial_reads import (
    ReadCheckpoints,
    batches,
    parts_around,
    put,
    saved_layouts,
)
from heterps_runtime.state.transfer import Peers, Transfer, balanced_pieces
from heterps_runtime.tensor_parallel.regions import Box
from heterps_runtime.transport.communication import Communicator

Source = Literal["replica", "snapshot", "local", "remote", "initialisation"]
SOURCES: tuple[Source, ...] = ("replica", "snapshot", "local", "remote", "initialisation")


class Recovered(NamedTuple):
    """What became of a recovery.

    Attributes:
        step: The next step to run: so many are done. The same on all ranks.
        bytes_by_source: What came to this rank, with what was read in vain; nothing for what it
            held itself.
        seconds: Of the whole recovery.
        remarks: What was found damaged, or could not be reached, by this rank.
    """

    step: int
    bytes_by_source: dict[str, int]
    seconds: float
    remarks: tuple[str, ...]


def recover(
    held: HeldState,
    held_step: int | None,
    specification: RunSpecification,
    owned: OwnedStages,
    communicator: Communicator,
    tiers: CheckpointTiers | None = None,
    on_progress: Callable[[], None] = lambda: None,
) -> Recovered:
    """Fills parameters and buffers of the new stages, and the optimizer's state.

    What is held is never written to: where a rank is lost meanwhile, the others can call it again
    with new stages.

    Args:
        held: `held_by` what this rank trained; empty where it trained nothing.
        held_step: Steps that are done in it; None where it is empty.
        specification: The plan to come.
        owned: Its stages on this rank, freshly built.
        communicator: All ranks of the generation call this together.
        tiers: Where checkpoints are; None: as the specification says.
        on_progress: Called now and then while this rank reads a checkpoint.

    Raises:
        HeterpsError: On all ranks: there is no step at which every tensor has a source.
        RuntimeError: A rank was lost.
    """
    tiers = tiers or CheckpointTiers(specification.checkpoint, specification.resume_from)
    recovery = Recovery(Peers.of(communicator), held, held_step, specification, owned, tiers)
    return recovery.run(on_progress)


class Recovery:
    """One recovery of one rank.

    Args:
        peers: All ranks.
        held: What this rank trained.
        held_step: Steps that are done in it.
        specification: The plan to come.
        owned: Its stages here.
        tiers: Where checkpoints are.
    """

    def __init__(
        self,
        peers: Peers,
        held: HeldState,
        held_step: int | None,
        specification: RunSpecification,
        owned: OwnedStages,
        tiers: CheckpointTiers,
    ) -> None:
        self._peers, self._rank = peers, peers.gatherer.rank
        self._held, self._held_step = held, held_step
        self._specification, self._owned, self._tiers = specification, owned, tiers
        self._wanted = Wanted.of(owned)
        self._bytes: dict[str, int] = dict.fromkeys(SOURCES, 0)
        self._checkpoints = ReadCheckpoints()

    def run(self, on_progress: Callable[[], None] = lambda: None) -> Recovered:
        """See `recover`."""
        started_s = time.perf_counter()
        layouts = self._held.layouts if self._held_step is not None else {}
        holding = Holding(self._held_step, layouts, self._wanted)
        self._holdings: list[Holding] = self._peers.gatherer.gather(holding, Holding)
        live = live_step(self._holdings)
        if live is not None:
            step, state = live[0], self._from_ranks(*live)
        else:
            step, state = self._from_everywhere(on_progress)
        install(self._owned, state)
        return Recovered(
            step=step,
            bytes_by_source=self._bytes,
            seconds=time.perf_counter() - started_s,
            remarks=tuple(self._checkpoints.remarks),
        )

    # -- all tensors are alive

    def _from_ranks(self, step: int, needed: Needed) -> State:
        held = self._held_at(step)
        state = self._memory(needed, [held])
        self._finish("replica", self._transfer(needed, 0, held, state))
        return state.tensors

    def _held_at(self, step: int) -> HeldState:
        return self._held if self._held_step == step else HeldState({})

    def _memory(self, needed: Needed, held: Sequence[HeldState]) -> HeldState:
        """For what this rank wants, with what it has in it."""
        cells = [cell for cell in needed.cells if cell.destination == self._rank]
        return gathered_state(needed.targets[self._rank], cells, held, self._rank)

    def _transfer(
        self, needed: Needed, offer: int, held: HeldState, state: HeldState, first_tag: int = 0
    ) -> Transfer:
        buffers = {name for holding in self._holdings for name in holding.wanted.buffers}
        cells = [cell for cell in needed.cells if cell.offer == offer]
        pieces = balanced_pieces(cells, len(self._holdings), buffers)
        return Transfer(self._peers, pieces, held, state, first_tag)

    def _finish(self, source: Source, transfer: Transfer) -> None:
        transfer.finish()
        self._bytes[source] += transfer.bytes_received

    # -- some tensors are not

    def _from_everywhere(self, on_progress: Callable[[], None]) -> tuple[int, State]:
        """Tries one step after another, the newest first, until all ranks have all they want."""
        saved_steps, remarks = self._tiers.saved_steps()
        self._checkpoints.remarks += remarks
        snapshots = {s: state.layouts for s, state in self._tiers.snapshots.items()}
        while True:
            readable = self._readable(saved_steps)
            gathered = self._peers.gatherer.gather(SavedNames(snapshots, readable), SavedNames)
            newest = newest_step(self._holdings, gathered)
            if newest is None:
                raise HeterpsError(nothing_left(gathered))
            step, needed = newest
            state = self._at_step(step, needed, saved_steps, on_progress)
            # A checkpoint may turn out to be damaged while it is read.
            if all(self._peers.gatherer.gather(state is not None, bool)):
                assert state is not None
                return step, state

    def _readable(self, saved_steps: Sequence[SavedStep]) -> dict[int, frozenset[str]]:
        found: dict[int, frozenset[str]] = {}
        for saved in saved_steps:
            if self._checkpoints.open(saved) is not None:
                names = self._wanted.names & self._checkpoints.names(saved)
                found[saved.step] = found.get(saved.step, frozenset()) | names
        if self._can_initialise(0):
            found[0] = self._wanted.names
        return found

    def _can_initialise(self, step: int) -> bool:
        return step == 0 and self._specification.resume_from is None

    def _at_step(
        self,
        step: int,
        needed: Needed,
        saved_steps: Sequence[SavedStep],
        on_progress: Callable[[], None],
    ) -> State | None:
        """What this rank wants at one step; None where not all of it could be had."""
        held = [self._held_at(step), self._tiers.snapshots.get(step, HeldState({}))]
        # Other ranks send while this one reads.
        state = self._memory(needed, held)
        transfer = self._transfer(needed, 0, held[0], state)
        from_memory = self._transfer(needed, 1, held[1], state, first_tag=2**20)
        self._bytes["snapshot"] += sum(
            cell.num_bytes
            for cell in needed.cells
            if cell.offer == 1 and cell.destination == self._rank in cell.holders
        )
        is_complete = self._read(step, needed, state, saved_steps, on_progress)
        self._finish("replica", transfer)
        self._finish("snapshot", from_memory)
        return state.tensors if is_complete else None

    def _read(
        self,
        step: int,
        needed: Needed,
        state: HeldState,
        saved_steps: Sequence[SavedStep],
        on_progress: Callable[[], None],
    ) -> bool:
        """Adds what no rank holds, from the nearest checkpoint that has it; whether that is all."""
        boxes: dict[tuple[str, str], list[Box]] = {}
        for cell in needed.cells:
            if cell.offer is None and cell.destination == self._rank:
                boxes.setdefault((cell.name, cell.key), []).append(cell.box)
        left = set(needed.missing[self._rank])
        for saved in saved_steps:
            tensors = self._checkpoints.open(saved) if left and saved.step == step else None
            if tensors is None:
                continue
            layouts = self._wanted.layouts(saved_layouts(tensors, left))
            parts = parts_around(layouts, boxes, needed.targets[self._rank])
            for batch in batches(parts):
                found = self._checkpoints.read(saved, tensors, batch)
                self._bytes[saved.tier] += state_bytes(found.tensors)
                put(found, state, boxes)
                left -= found.tensors.keys()
                on_progress()
        if left and self._can_initialise(step):
            found = self._initial(left)
            self._bytes["initialisation"] += state_bytes(found.tensors)
            put(found, state, boxes)
            left = set()
        return not left

    def _initial(self, names: Collection[str]) -> HeldState:
        """What training begins with; the optimizer has no state yet."""
        specification, slices = self._specification, self._wanted.slices
        source = specification.profile.source
        assert source is not None
        module = build_module(source, dtype=specification.plan.job.dtype)
        start = start_values(specification)
        values = sliced_values(start, module, self._wanted.parameters & set(names), slices)
        buffers = {
            name: buffer
            for name, buffer in module.named_buffers()
            if name in self._wanted.buffers & set(names)
        }
        start.fill(buffers)
        for name, buffer in buffers.items():
            piece = slices.get(name)
            values[name] = buffer if piece is None else piece.of(buffer)
        places = {name: {VALUE: slices[name]} for name in values if name in slices}
        return HeldState({name: {VALUE: value} for name, value in values.items()}, places)
