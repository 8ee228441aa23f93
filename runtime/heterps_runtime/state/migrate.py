"""Migration: parameters and optimizer state go from the old plan's owners to those of the new one.

A rank gets what its new stages need of a tensor and it does not hold: whole, as the slice of its
tensor-parallel group, or as the rows whose optimizer state it keeps of what replicas share; in
pieces from all ranks that hold any of it (`transfer`). What stays on its rank as it is is handed
over by reference: not a byte of it moves. Running statistics (persistent buffers) travel like
parameters, from the first replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from heterps_runtime.stages.loss_scale import LOSS_SCALE
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.state.layout import (
    VALUE,
    HeldState,
    Layouts,
    State,
    TensorLayout,
    places_of,
    without_value,
)
from heterps_runtime.state.transfer import Cell, Peers, Transfer, balanced_pieces, wanted_cells
from heterps_runtime.tensor_parallel.regions import view_of
from heterps_runtime.tensor_parallel.slices import TensorSlice
from heterps_runtime.transport.communication import Communicator


@dataclass
class Migration:
    """What came to a rank in a migration.

    Attributes:
        bytes_received: From other ranks.
    """

    bytes_received: int = 0


class Wanted(NamedTuple):
    """What the stages of a rank consist of.

    Attributes:
        parameters: Names.
        buffers: Names.
        slices: Of those of which the rank has a part, where that belongs.
        stepped: Names of parameters whose optimizer state it has.
        state_slices: Of those of which it has a part of that state, where that belongs.
    """

    parameters: frozenset[str]
    buffers: frozenset[str]
    slices: dict[str, TensorSlice]
    stepped: frozenset[str]
    state_slices: dict[str, TensorSlice]

    @classmethod
    def of(cls, owned: OwnedStages) -> Wanted:
        """All that the stages of a rank hold."""
        return cls(
            frozenset(owned.parameters),
            frozenset(name for stage in owned.modules.values() for name in stage.buffers_by_name()),
            owned.slices,
            frozenset(owned.stepped),
            owned.state_slices,
        )

    @property
    def names(self) -> frozenset[str]:
        """Names of parameters and buffers."""
        return self.parameters | self.buffers

    def layouts(self, known: Mapping[str, Mapping[str, TensorLayout]]) -> Layouts:
        """What the rank has to have of the tensors that there are.

        Args:
            known: By name and key; of any part.
        """
        found: Layouts = {}
        for name in sorted(self.names & known.keys()):
            entries = []
            for key, layout in known[name].items():
                if key == VALUE:
                    entries.append(layout.part(self.slices.get(name)))
                elif name in self.stepped:
                    place = self.state_slices.get(name)
                    is_divided = place is not None and is_part_of(key, layout, place)
                    entries.append(layout.part(place if is_divided else None))
            found[name] = tuple(entries)
        return found


def is_part_of(key: str, layout: TensorLayout, place: TensorSlice) -> bool:
    """Whether a tensor of the optimizer's state has a number for each of the parameter's."""
    return key != LOSS_SCALE and layout.whole_shape == place.shape


def known_tensors(layouts: Iterable[Layouts]) -> dict[str, dict[str, TensorLayout]]:
    """All tensors that anybody has any of, by name and key."""
    found: dict[str, dict[str, TensorLayout]] = {}
    for own in layouts:
        for name, entries in own.items():
            keys = found.setdefault(name, {})
            for layout in entries:
                keys.setdefault(layout.key, layout)
    return found


def migrate(old: OwnedStages, new: OwnedStages, communicator: Communicator) -> Migration:
    """Brings the state of its new stages to this rank, and puts it into them.

    Args:
        old: What this rank holds.
        new: The new stages, freshly built.
        communicator: All ranks call this together.
    """
    return migrate_among(Peers.of(communicator), old, new)


def migrate_among(peers: Peers, old: OwnedStages, new: OwnedStages) -> Migration:
    """`migrate` for any kind of ranks."""
    held, own = held_by(old), Wanted.of(new)
    gathered = peers.gatherer.gather((held.layouts, own), tuple[Layouts, Wanted])
    layouts = [layout for layout, _ in gathered]
    known = known_tensors(layouts)
    targets = [wanted.layouts(known) for _, wanted in gathered]
    cells = list(wanted_cells([layouts], targets))
    rank = peers.gatherer.rank
    state = gathered_state(targets[rank], [c for c in cells if c.destination == rank], [held], rank)
    buffers = {name for _, wanted in gathered for name in wanted.buffers}
    transfer = Transfer(peers, balanced_pieces(cells, len(gathered), buffers), held, state)
    transfer.finish()
    install(new, state.tensors)
    return Migration(transfer.bytes_received)


def gathered_state(
    targets: Layouts, cells: Sequence[Cell], held: Sequence[HeldState], rank: int
) -> HeldState:
    """Memory for what a rank wants, with what it has itself in it.

    What it has as it wants it in the first place is there by reference.

    Args:
        targets: What it wants.
        cells: Of that.
        held: What it has, of each offer.
        rank: The own one.
    """
    tensors: State = {}
    copied: set[tuple[str, str]] = set()
    for name, layouts in targets.items():
        tensors[name] = {}
        for layout in layouts:
            found = held[0].tensors.get(name, {}).get(layout.key)
            if found is not None and held[0].place(name, layout.key) == layout.place:
                tensors[name][layout.key] = found
            else:
                tensors[name][layout.key] = layout.blank()
                copied.add((name, layout.key))
    state = HeldState(tensors, places_of(targets))
    for cell in cells:
        if (cell.name, cell.key) in copied and rank in cell.holders and cell.offer is not None:
            _copy_cell(cell, held[cell.offer], state)
    return state


def _copy_cell(cell: Cell, source: HeldState, target: HeldState) -> None:
    own, wanted = (
        view_of(state.tensors[cell.name][cell.key], state.place(cell.name, cell.key), cell.box)
        for state in (source, target)
    )
    wanted.copy_(own)


def held_by(owned: OwnedStages) -> HeldState:
    """All that belongs to the stages of a rank, and where parts of tensors belong."""
    tensors: State = {}
    places: dict[str, dict[str, TensorSlice]] = {}

    def add(name: str, key: str, tensor: Tensor, place: TensorSlice | None) -> None:
        tensors.setdefault(name, {})[key] = tensor
        if place is not None:
            places.setdefault(name, {})[key] = place

    for name, parameter in owned.parameters.items():
        # Until replicas have handed out what they stepped, each has only its own part of it.
        is_own = name in owned.not_handed_out
        value = owned.stepped[name] if is_own else parameter
        add(name, VALUE, value.detach(), (owned.state_slices if is_own else owned.slices).get(name))
    for name, parameter in owned.stepped.items():
        if owned.optimizer is None:
            break
        place = owned.state_slices.get(name)
        for key, value in owned.optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                is_part = value.shape == parameter.shape and key != LOSS_SCALE
                add(name, key, value, place if is_part else None)
    for module in owned.modules.values():
        for name, buffer in module.buffers_by_name().items():
            add(name, VALUE, buffer, owned.slices.get(name))
    return HeldState(tensors, places)


def load_optimizer_state(owned: OwnedStages, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Gives a fresh optimizer the state that its parameters had."""
    for name, parameter in owned.stepped.items():
        if state[name]:
            assert owned.optimizer is not None
            # Counts of steps stay on the CPU, as optimizers keep them.
            owned.optimizer.state[parameter] = {
                key: tensor.to(parameter.device) if tensor.shape == parameter.shape else tensor
                for key, tensor in state[name].items()
            }


def install(owned: OwnedStages, state: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Puts values into stages: by reference where they compute, buffers as copies.

    Args:
        owned: Freshly built.
        state: Of all their parameters and buffers, with the optimizer's.
    """
    owned.take_values({name: state[name][VALUE] for name in owned.parameters})
    for module in owned.modules.values():
        for name, buffer in module.buffers_by_name().items():
            buffer.copy_(state[name][VALUE])
    load_optimizer_state(owned, {name: without_value(state[name]) for name in owned.stepped})
