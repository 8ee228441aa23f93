"""Recovery: the ranks of a new generation bring together the state that their stages need.

Each tensor has one source, the nearest that holds it: this rank (not a byte moves), another rank
that is alive, the memory snapshot of a checkpoint, a local checkpoint, a remote one,
initialisation. Training goes on at the newest step at which every tensor has a source; only where
nobody alive holds some tensor, that is a step back, for all ranks. (Local first: AutoHet, 2025.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from heterps_configs.errors import HeterpsError
from heterps_runtime.elastic.state_sources import (
    Holding,
    SavedNames,
    layouts_at,
    live_step,
    newest_step,
    nothing_left,
)
from heterps_runtime.models.build import build_module
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.stage import StageModule
from heterps_runtime.stages.start_values import start_values
from heterps_runtime.state.checkpoint_storage import SavedTensors
from heterps_runtime.state.checkpoint_tiers import CheckpointTiers, SavedStep
from heterps_runtime.state.layout import (
    VALUE,
    Layouts,
    State,
    blank_state,
    checkpoint_key,
    keys_by_name,
    layouts_of,
    state_bytes,
    without_value,
)
from heterps_runtime.state.migrate import Wanted, install
from heterps_runtime.state.transfer import Peers, Piece, Transfer, arriving_layouts, balanced_pieces
from heterps_runtime.transport.communication import Communicator

Source = Literal["replica", "snapshot", "local", "remote", "initialisation"]
SOURCES: tuple[Source, ...] = ("replica", "snapshot", "local", "remote", "initialisation")
# Read from a checkpoint at a time: progress is reported in between.
_BATCH_BYTES = 64 * 2**20


class Recovered(NamedTuple):
    """What a rank holds after a recovery.

    Attributes:
        step: The next step to run: so many are done. The same on all ranks.
        optimizer_state: Of each parameter of the stages, by its name in the whole model.
        bytes_by_source: What came to this rank, with what was read in vain; nothing for what it
            held itself.
        seconds: Of the whole recovery.
        seconds_by_source: Parts of it that this rank spent on each source.
        remarks: What was found damaged, or could not be reached, by this rank.
    """

    step: int
    optimizer_state: State
    bytes_by_source: dict[str, int]
    seconds: float
    seconds_by_source: dict[str, float]
    remarks: tuple[str, ...]


def recover(
    held: State,
    held_step: int | None,
    specification: RunSpecification,
    modules: Mapping[str, StageModule],
    communicator: Communicator,
    tiers: CheckpointTiers | None = None,
    on_progress: Callable[[], None] = lambda: None,
) -> Recovered:
    """Fills parameters and buffers of the new stages, and returns the optimizer's state.

    What is held is never written to: where a rank is lost meanwhile, the others can call it again
    with new stages.

    Args:
        held: `state_of` what this rank trained; empty where it trained nothing.
        held_step: Steps that are done in it; None where it is empty.
        specification: The plan to come.
        modules: Its stages on this rank, freshly built.
        communicator: All ranks of the generation call this together.
        tiers: Where checkpoints are; None: as the specification says.
        on_progress: Called now and then while this rank reads a checkpoint.

    Raises:
        HeterpsError: On all ranks: there is no step at which every tensor has a source.
        RuntimeError: A rank was lost.
    """
    tiers = tiers or CheckpointTiers(specification.checkpoint, specification.resume_from)
    recovery = Recovery(Peers.of(communicator), held, held_step, specification, modules, tiers)
    return recovery.run(on_progress)


class Recovery:
    """One recovery of one rank.

    Args:
        peers: All ranks.
        held: What this rank trained.
        held_step: Steps that are done in it.
        specification: The plan to come.
        modules: Its stages here.
        tiers: Where checkpoints are.
    """

    def __init__(
        self,
        peers: Peers,
        held: State,
        held_step: int | None,
        specification: RunSpecification,
        modules: Mapping[str, StageModule],
        tiers: CheckpointTiers,
    ) -> None:
        self._peers, self._rank = peers, peers.gatherer.rank
        self._held, self._held_step = held, held_step
        self._specification, self._modules, self._tiers = specification, modules, tiers
        self._wanted = Wanted.of(modules.values())
        self._bytes: dict[str, int] = dict.fromkeys(SOURCES, 0)
        self._seconds: dict[str, float] = dict.fromkeys(SOURCES, 0.0)
        self._remarks: list[str] = []
        # What cannot be read: (place, name), an empty name for all of it.
        self._damaged: set[tuple[str, str]] = set()
        self._opened: dict[str, SavedTensors] = {}

    def run(self, on_progress: Callable[[], None] = lambda: None) -> Recovered:
        """See `recover`."""
        started_s = time.perf_counter()
        holding = Holding(
            self._held_step,
            layouts_of(self._held) if self._held_step is not None else {},
            self._wanted,
        )
        self._holdings: list[Holding] = self._peers.gatherer.gather(holding, Holding)
        step = live_step(self._holdings)
        if step is not None:
            state = self._from_ranks(step)
        else:
            step, state = self._from_everywhere(on_progress)
        install(self._modules.values(), state)
        return Recovered(
            step=step,
            optimizer_state={n: without_value(state[n]) for n in self._wanted.parameters},
            bytes_by_source=self._bytes,
            seconds=time.perf_counter() - started_s,
            seconds_by_source=self._seconds,
            remarks=tuple(self._remarks),
        )

    # -- all tensors are alive

    def _from_ranks(self, step: int) -> State:
        began_s = time.perf_counter()
        layouts = [layouts_at(holding, step) for holding in self._holdings]
        own = self._own(step)
        transfer = self._transfer(layouts, own, self._missing(layouts))
        state = {**own, **self._finish("replica", transfer)}
        self._seconds["replica"] += time.perf_counter() - began_s
        return state

    def _own(self, step: int) -> State:
        return self._held if self._held_step == step else {}

    def _missing(self, layouts: Sequence[Layouts]) -> list[frozenset[str]]:
        """By rank, what it wants and does not hold, and somebody does."""
        anywhere = frozenset(name for held in layouts for name in held)
        return [
            (holding.wanted.names - held.keys()) & anywhere
            for holding, held in zip(self._holdings, layouts, strict=True)
        ]

    def _transfer(
        self,
        layouts: Sequence[Layouts],
        held: State,
        missing: Sequence[Collection[str]],
        first_tag: int = 0,
    ) -> Transfer:
        buffers = {name for holding in self._holdings for name in holding.wanted.buffers}
        pieces: list[Piece] = balanced_pieces(layouts, missing, buffers)
        arriving = arriving_layouts(layouts, missing[self._rank])
        return Transfer(self._peers, pieces, held, arriving, first_tag)

    def _finish(self, source: Source, transfer: Transfer) -> State:
        arrived = transfer.finish()
        self._bytes[source] += state_bytes(arrived)
        return arrived

    # -- some tensors are not

    def _from_everywhere(self, on_progress: Callable[[], None]) -> tuple[int, State]:
        """Tries one step after another, the newest first, until all ranks have all they want."""
        saved_steps, remarks = self._tiers.saved_steps()
        self._remarks += remarks
        snapshots = {s: layouts_of(state) for s, state in self._tiers.snapshots.items()}
        while True:
            readable = self._readable(saved_steps)
            gathered = self._peers.gatherer.gather(SavedNames(snapshots, readable), SavedNames)
            step = newest_step(self._holdings, gathered)
            if step is None:
                raise HeterpsError(nothing_left(gathered))
            state = self._at_step(step, gathered, saved_steps, on_progress)
            # A checkpoint may turn out to be damaged while it is read.
            if all(self._peers.gatherer.gather(self._wanted.names <= state.keys(), bool)):
                return step, state

    def _readable(self, saved_steps: Sequence[SavedStep]) -> dict[int, frozenset[str]]:
        found: dict[int, frozenset[str]] = {}
        for saved in saved_steps:
            tensors = self._open(saved)
            if tensors is not None:
                names = {
                    name
                    for name in keys_by_name(tensors.names)
                    if (saved.place, name) not in self._damaged
                }
                found[saved.step] = found.get(saved.step, frozenset()) | (
                    self._wanted.names & names
                )
        if self._can_initialise(0):
            found[0] = self._wanted.names
        return found

    def _can_initialise(self, step: int) -> bool:
        return step == 0 and self._specification.resume_from is None

    def _at_step(
        self,
        step: int,
        gathered: Sequence[SavedNames],
        saved_steps: Sequence[SavedStep],
        on_progress: Callable[[], None],
    ) -> State:
        """What this rank wants, as far as it can be had at one step."""
        live = [layouts_at(holding, step) for holding in self._holdings]
        alive = {name for held in live for name in held}
        kept = [
            {name: entry for name, entry in saved.snapshots.get(step, {}).items()
             if name not in alive}
            for saved in gathered
        ]  # fmt: skip
        own = dict(self._own(step))
        snapshot = {
            name: tensors
            for name, tensors in self._tiers.snapshots.get(step, {}).items()
            if name in kept[self._rank]
        }
        # Other ranks send while this one reads.
        began_s = time.perf_counter()
        transfer = self._transfer(live, own, self._missing(live))
        first_tag = 2**20
        from_memory = self._transfer(kept, snapshot, self._missing(kept), first_tag)
        state = own
        copies = {n: snapshot[n] for n in self._wanted.names & snapshot.keys()}
        state |= {n: {k: t.clone() for k, t in tensors.items()} for n, tensors in copies.items()}
        self._bytes["snapshot"] += state_bytes(copies)
        self._seconds["snapshot"] += time.perf_counter() - began_s
        arriving = self._missing(live)[self._rank] | self._missing(kept)[self._rank]
        self._read(step, state, arriving, saved_steps, on_progress)
        began_s = time.perf_counter()
        state |= self._finish("replica", transfer)
        self._seconds["replica"] += time.perf_counter() - began_s
        state |= self._finish("snapshot", from_memory)
        return state

    def _read(
        self,
        step: int,
        state: State,
        arriving: Collection[str],
        saved_steps: Sequence[SavedStep],
        on_progress: Callable[[], None],
    ) -> None:
        """Adds what no rank holds, from the nearest checkpoint that has it."""
        for saved in saved_steps:
            left = self._wanted.names - state.keys() - set(arriving)
            tensors = self._open(saved) if left and saved.step == step else None
            if tensors is None:
                continue
            began_s = time.perf_counter()
            for batch in _batches(tensors, left):
                found = self._read_batch(saved, tensors, batch)
                self._bytes[saved.tier] += state_bytes(found)
                state |= found
                on_progress()
            self._seconds[saved.tier] += time.perf_counter() - began_s
        left = self._wanted.names - state.keys() - set(arriving)
        if left and self._can_initialise(step):
            began_s = time.perf_counter()
            found = self._initial(left)
            self._bytes["initialisation"] += state_bytes(found)
            state |= found
            self._seconds["initialisation"] += time.perf_counter() - began_s

    def _read_batch(self, saved: SavedStep, tensors: SavedTensors, batch: Layouts) -> State:
        """One by one where all together cannot be read: to know what is damaged."""
        groups = [batch] if len(batch) == 1 else [batch, *({n: e} for n, e in batch.items())]
        state: State = {}
        for index, group in enumerate(groups):
            found = blank_state(group)
            targets = {
                checkpoint_key(name, key): tensor
                for name, own in found.items()
                for key, tensor in own.items()
            }
            try:
                tensors.read(targets)
            except HeterpsError as error:
                if len(group) == 1:
                    self._damaged.add((saved.place, next(iter(group))))
                    self._remark(str(error))
            else:
                state |= found
                if index == 0:
                    break
        return state

    def _initial(self, names: Collection[str]) -> State:
        """What training begins with; the optimizer has no state yet."""
        specification = self._specification
        source = specification.profile.source
        assert source is not None
        module = build_module(source, dtype=specification.plan.job.dtype)
        start = start_values(specification)
        parameters = start.parameters(module, self._wanted.parameters & set(names))
        buffers = {
            name: buffer
            for stage in self._modules.values()
            for name, buffer in stage.buffers_by_name().items()
            if name in names
        }
        start.fill(buffers)
        return {name: {VALUE: value} for name, value in {**buffers, **parameters}.items()}

    def _open(self, saved: SavedStep) -> SavedTensors | None:
        if saved.place not in self._opened and (saved.place, "") not in self._damaged:
            try:
                self._opened[saved.place] = saved.open()
            except HeterpsError as error:
                self._damaged.add((saved.place, ""))
                self._remark(str(error))
        return self._opened.get(saved.place)

    def _remark(self, text: str) -> None:
        if text not in self._remarks:
            self._remarks.append(text)


def _batches(tensors: SavedTensors, names: Collection[str]) -> Iterator[Layouts]:
    """Layouts of what a checkpoint has of some names, not too many bytes at a time."""
    batch: Layouts = {}
    size = 0
    for name, keys in keys_by_name(tensors.names).items():
        if name not in names:
            continue
        entry = layouts_of({name: {part: tensors.blank(text) for part, text in keys.items()}})
        need = sum(layout.num_bytes for layout in entry[name])
        if batch and size + need > _BATCH_BYTES:
            yield batch
            batch, size = {}, 0
        batch |= entry
        size += need
    if batch:
        yield batch
