"""States go from rank to rank: who sends what to whom, and the sending.

Every rank makes the same plan from what all hold and want: nobody is asked, nobody waits. A tensor
that a rank wants, whole or a slice of it, is cut into cells at the edges of what the ranks have of
it, and large cells into pieces. A piece goes to each rank that wants it from one holder: the
largest first, each from the holder that sends the fewest bytes so far. Small pieces between two
ranks travel in one message. (Balanced sources: Jang et al., Oobleck, SOSP 2023, section 5.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heterps_runtime.state.layout import HeldState, Layouts
from heterps_runtime.tensor_parallel.regions import (
    Box,
    boxes_of,
    contains,
    cut,
    num_elements,
    view_of,
)
from heterps_runtime.tensor_parallel.slices import TensorSlice
from heterps_runtime.transport.communication import Communicator, Gatherer
from heterps_runtime.transport.messenger import Messenger, ProcessMessenger, Work

# Largest piece: small enough that a tensor of 64 MiB is shared evenly by several holders.
PIECE_BYTES = 4 * 2**20


class Peers(NamedTuple):
    """The ranks that exchange states: what they ask of one another, and what carries tensors."""

    gatherer: Gatherer
    messenger: Messenger

    @classmethod
    def of(cls, communicator: Communicator) -> Peers:
        """Ranks that are processes."""
        return cls(communicator, ProcessMessenger(communicator))


class Cell(NamedTuple):
    """A part of a tensor that a rank wants, and who has all of it.

    Attributes:
        box: In the whole tensor.
        destination: Who wants it.
        offer: Index of the first offer in which anybody has it; None: nobody has.
        holders: The ranks that have it there.
    """

    name: str
    key: str
    box: Box
    num_bytes: int
    destination: int
    offer: int | None
    holders: tuple[int, ...]


class Piece(NamedTuple):
    """Some bytes of a part of a tensor, from one rank to another."""

    name: str
    key: str
    box: Box
    start: int
    stop: int
    source: int
    destination: int

    @property
    def num_bytes(self) -> int:
        """How many bytes these are."""
        return self.stop - self.start


class Transfer:
    """States on their way to this rank and from it.

    Args:
        peers: All ranks start the same transfer together.
        pieces: All of them, in the order of `balanced_pieces`.
        held: What this rank holds; nobody may change it until the transfer has ended.
        arriving: Memory on the CPU for what this rank wants; it is filled.
        first_tag: Of its messages; transfers at the same time have tags of their own.

    Attributes:
        bytes_received: From other ranks, when all has come.
    """

    def __init__(
        self,
        peers: Peers,
        pieces: Sequence[Piece],
        held: HeldState,
        arriving: HeldState,
        first_tag: int = 0,
    ) -> None:
        self._messenger, rank = peers.messenger, peers.gatherer.rank
        self._works: list[Work] = []
        # Each with what must be copied out of it in the end.
        self._packed: list[tuple[Tensor, list[Tensor]]] = []
        self._apart: list[tuple[Tensor, Tensor]] = []
        self._sent: list[Tensor] = []
        self._flat: dict[tuple[str, str, Box], Tensor] = {}
        self.bytes_received = 0
        for tag, message in enumerate(messages_of(pieces), first_tag):
            if message[0].source == rank:
                self._send(message, held, tag)
            elif message[0].destination == rank:
                self._receive(message, arriving, tag)

    def finish(self) -> None:
        """Waits for all that is under way."""
        for work in self._works:
            work.wait()
        for buffer, parts in self._packed:
            start = 0
            for part in parts:
                part.copy_(buffer[start : start + part.numel()])
                start += part.numel()
        for view, flat in self._apart:
            view.copy_(flat.view(view.shape))

    def _send(self, message: Sequence[Piece], held: HeldState, tag: int) -> None:
        parts = [self._bytes_of(held, piece) for piece in message]
        buffer = parts[0] if len(parts) == 1 else torch.cat(parts)
        self._sent.append(buffer)
        self._works.append(self._messenger.send(buffer, message[0].destination, "forward", tag))

    def _receive(self, message: Sequence[Piece], arriving: HeldState, tag: int) -> None:
        parts = [self._bytes_for(arriving, piece) for piece in message]
        buffer = parts[0]
        if len(parts) > 1:
            buffer = torch.empty(sum(part.numel() for part in parts), dtype=torch.uint8)
            self._packed.append((buffer, parts))
        self.bytes_received += buffer.numel()
        self._works.append(self._messenger.receive(buffer, message[0].source, "forward", tag))

    def _bytes_of(self, held: HeldState, piece: Piece) -> Tensor:
        ident = piece.name, piece.key, piece.box
        if ident not in self._flat:
            # Through host memory, whatever either rank computes on.
            tensor = _view(held, piece).detach().cpu().contiguous()
            self._flat[ident] = _as_bytes(tensor)
        return self._flat[ident][piece.start : piece.stop]

    def _bytes_for(self, arriving: HeldState, piece: Piece) -> Tensor:
        """Where bytes come to: their own place where it is in one run, else memory beside it."""
        ident = piece.name, piece.key, piece.box
        if ident not in self._flat:
            view = _view(arriving, piece)
            flat = view
            if not view.is_contiguous():
                flat = torch.empty(view.shape, dtype=view.dtype)
                self._apart.append((view, flat))
            self._flat[ident] = _as_bytes(flat)
        return self._flat[ident][piece.start : piece.stop]


def _view(state: HeldState, piece: Piece) -> Tensor:
    tensor = state.tensors[piece.name][piece.key]
    return view_of(tensor, state.place(piece.name, piece.key), piece.box)


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def wanted_cells(offers: Sequence[Sequence[Layouts]], wanted: Sequence[Layouts]) -> Iterator[Cell]:
    """What each rank wants, in parts that ranks have all of, or nothing: alike on every rank.

    Args:
        offers: What each rank holds, by rank; of several places (its stages, its copies of them),
            the nearest first. What the first one has comes from there.
        wanted: What each rank wants, by rank.
    """
    held = [_by_tensor(layouts) for layouts in offers]
    # A model repeats its blocks, and an optimizer its parameters: few tensors lie differently.
    known: dict[_Pattern, list[_Part]] = {}
    for destination, layouts in enumerate(wanted):
        # Names in order, so that equal sizes are dealt alike on every rank.
        for name in sorted(layouts):
            for layout in layouts[name]:
                key = layout.key
                offered = tuple(tuple(own.get((name, key), ())) for own in held)
                pattern = layout.whole_shape, layout.place, offered
                if pattern not in known:
                    known[pattern] = list(_parts(*pattern))
                for box, elements, offer, ranks in known[pattern]:
                    num_bytes = elements * layout.dtype.itemsize
                    yield Cell(name, key, box, num_bytes, destination, offer, ranks)


_Holder = tuple[int, TensorSlice | None]  # a rank, and which part of a tensor it has
_Offered = tuple[tuple[_Holder, ...], ...]  # by offer
_Pattern = tuple[tuple[int, ...], TensorSlice | None, _Offered]
_Part = tuple[Box, int, int | None, tuple[int, ...]]  # with its elements, offer and holders


def _by_tensor(layouts: Iterable[Layouts]) -> dict[tuple[str, str], list[_Holder]]:
    found: dict[tuple[str, str], list[_Holder]] = {}
    for rank, own in enumerate(layouts):
        for name, entries in own.items():
            for layout in entries:
                found.setdefault((name, layout.key), []).append((rank, layout.place))
    return found


def _parts(
    whole_shape: tuple[int, ...], wanted: TensorSlice | None, offered: _Offered
) -> Iterator[_Part]:
    places = [place for holders in offered for _, place in holders]
    for box in boxes_of(whole_shape, wanted):
        for part in cut(box, places):
            offer, ranks = None, tuple[int, ...]()
            for index, holders in enumerate(offered):
                ranks = tuple(rank for rank, place in holders if contains(place, part))
                if ranks:
                    offer = index
                    break
            yield part, num_elements(part), offer, ranks


def balanced_pieces(
    cells: Iterable[Cell], num_ranks: int, unequal: Collection[str] = ()
) -> list[Piece]:
    """Who sends what: the same list on every rank.

    Args:
        cells: What ranks want of one offer; what a rank has itself is not sent.
        num_ranks: How many ranks there are.
        unequal: Names whose holders differ (running statistics): the smallest rank sends them.
    """
    cuts = [
        (cell, start, min(start + PIECE_BYTES, cell.num_bytes))
        for cell in cells
        if cell.holders and cell.destination not in cell.holders
        for start in range(0, cell.num_bytes, PIECE_BYTES)
    ]
    cuts.sort(key=lambda entry: entry[1] - entry[2])
    load = [0] * num_ranks
    pieces: list[Piece] = []
    for cell, start, stop in cuts:
        possible = cell.holders[:1] if cell.name in unequal else cell.holders
        source = min(possible, key=lambda rank: (load[rank], rank))
        load[source] += stop - start
        pieces.append(Piece(cell.name, cell.key, cell.box, start, stop, source, cell.destination))
    return pieces


def messages_of(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces of one message each; no message is larger than the largest piece."""
    open_messages: dict[tuple[int, int], list[Piece]] = {}
    sizes: dict[tuple[int, int], int] = {}
    for piece in pieces:
        pair = piece.source, piece.destination
        if sizes.get(pair, 0) + piece.num_bytes > PIECE_BYTES:
            yield open_messages.pop(pair)
            sizes[pair] = 0
        open_messages.setdefault(pair, []).append(piece)
        sizes[pair] = sizes.get(pair, 0) + piece.num_bytes
    yield from open_messages.values()
