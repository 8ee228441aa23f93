"""States go from rank to rank: who sends what to whom, and the sending.

Every rank makes the same plan from what all hold and want: nobody is asked, nobody waits. Large
tensors are cut into pieces. A piece goes to each rank that wants it from one holder: the largest
first, each from the holder that sends the fewest bytes so far. Small pieces between two ranks
travel in one message. (Balanced sources: Jang et al., Oobleck, SOSP 2023, section 5.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heterps_runtime.state.layout import Layouts, State, blank_state
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
        """Processes."""
        return cls(communicator, ProcessMessenger(communicator))


class Piece(NamedTuple):
    """Some bytes of a tensor, from one rank to another."""

    name: str
    key: str
    start: int
    stop: int
    source: int
    destination: int

    @property
    def num_bytes(self) -> int:
        """How many."""
        return self.stop - self.start


class Transfer:
    """States on their way to this rank and from it.

    Args:
        peers: All ranks start the same transfer together.
        pieces: All of them, in the order of `balanced_pieces`.
        held: What this rank holds; nobody may change it until the transfer has ended.
        arriving: What comes to this rank.
        first_tag: Of its messages; transfers at the same time have tags of their own.
    """

    def __init__(
        self,
        peers: Peers,
        pieces: Sequence[Piece],
        held: State,
        arriving: Layouts,
        first_tag: int = 0,
    ) -> None:
        self._messenger, rank = peers.messenger, peers.gatherer.rank
        self._arriving = blank_state(arriving)
        self._works: list[Work] = []
        # Each with what must be copied out of it in the end.
        self._packed: list[tuple[Tensor, list[Tensor]]] = []
        self._sent: list[Tensor] = []
        self._flat: dict[tuple[str, str], Tensor] = {}
        for tag, message in enumerate(messages_of(pieces), first_tag):
            if message[0].source == rank:
                self._send(message, held, tag)
            elif message[0].destination == rank:
                self._receive(message, tag)

    def finish(self) -> State:
        """Waits for all that is under way; returns what came."""
        for work in self._works:
            work.wait()
        for buffer, parts in self._packed:
            start = 0
            for part in parts:
                part.copy_(buffer[start : start + part.numel()])
                start += part.numel()
        return self._arriving

    def _send(self, message: Sequence[Piece], held: State, tag: int) -> None:
        parts = [self._bytes(held, piece) for piece in message]
        buffer = parts[0] if len(parts) == 1 else torch.cat(parts)
        self._sent.append(buffer)
        self._works.append(self._messenger.send(buffer, message[0].destination, "forward", tag))

    def _receive(self, message: Sequence[Piece], tag: int) -> None:
        parts = [self._bytes(self._arriving, piece) for piece in message]
        buffer = parts[0]
        if len(parts) > 1:
            buffer = torch.empty(sum(part.numel() for part in parts), dtype=torch.uint8)
            self._packed.append((buffer, parts))
        self._works.append(self._messenger.receive(buffer, message[0].source, "forward", tag))

    def _bytes(self, state: State, piece: Piece) -> Tensor:
        key = piece.name, piece.key
        if key not in self._flat:
            # Through host memory, whatever either rank computes on.
            tensor = state[piece.name][piece.key].detach().cpu().contiguous()
            self._flat[key] = tensor.reshape(-1).view(torch.uint8)
        return self._flat[key][piece.start : piece.stop]


def balanced_pieces(
    layouts: Sequence[Layouts],
    wanted: Sequence[Collection[str]],
    unequal: Collection[str] = (),
) -> list[Piece]:
    """Who sends what: the same list on every rank.

    Args:
        layouts: What each rank holds, by rank.
        wanted: What each rank wants and does not hold, by rank; somebody holds it.
        unequal: Names whose holders differ (running statistics): the smallest rank sends them.
    """
    holders: dict[str, list[int]] = {}
    for rank, held in enumerate(layouts):
        for name in held:
            holders.setdefault(name, []).append(rank)
    # Names in order, so that equal sizes are dealt alike on every rank.
    uncut = [
        (name, layout, destination)
        for destination, names in enumerate(wanted)
        for name in sorted(names)
        for layout in layouts[holders[name][0]][name]
    ]
    cuts = [
        (name, layout.key, start, min(start + PIECE_BYTES, layout.num_bytes), destination)
        for name, layout, destination in uncut
        for start in range(0, layout.num_bytes, PIECE_BYTES)
    ]
    cuts.sort(key=lambda cut: cut[2] - cut[3])
    load = [0] * len(layouts)
    pieces: list[Piece] = []
    for name, key, start, stop, destination in cuts:
        possible = holders[name][:1] if name in unequal else holders[name]
        source = min(possible, key=lambda rank: (load[rank], rank))
        load[source] += stop - start
        pieces.append(Piece(name, key, start, stop, source, destination))
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


def arriving_layouts(layouts: Sequence[Layouts], wanted: Collection[str]) -> Layouts:
    """Of the names that come to a rank."""
    found: Layouts = {}
    for held in reversed(layouts):
        found.update((name, held[name]) for name in wanted if name in held)
    return found
