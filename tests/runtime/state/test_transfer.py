"""Who sends what: each byte once to each rank that wants it, evenly from all that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_runtime.execution.local_turns import (
    LetterBox,
    LocalGatherer,
    LocalMessenger,
    take_turns,
)
from heterps_runtime.state import transfer as state_transfer
from heterps_runtime.state.layout import Layouts, State, TensorLayout, layouts_of
from heterps_runtime.state.transfer import (
    PIECE_BYTES,
    Peers,
    Piece,
    Transfer,
    arriving_layouts,
    balanced_pieces,
    messages_of,
)

MIB = 2**20


def _layouts(name: str, size: int) -> Layouts:
    return {name: (TensorLayout("value", (size,), torch.uint8),)}


def _sent(pieces: Sequence[Piece], num_ranks: int) -> list[int]:
    return [sum(p.num_bytes for p in pieces if p.source == rank) for rank in range(num_ranks)]


def test_four_replicas_share_a_large_tensor() -> None:
    # Of 64 MiB, each of four holders sends a quarter.
    held = [*[_layouts("a", 64 * MIB)] * 4, {}]
    pieces = balanced_pieces(held, [set(), set(), set(), set(), {"a"}])
    assert _sent(pieces, 5) == [16 * MIB] * 4 + [0]
    assert {piece.destination for piece in pieces} == {4}


def test_what_replicas_have_of_their_own_comes_from_the_first() -> None:
    held = [_layouts("a", 64 * MIB), _layouts("a", 64 * MIB), {}]
    pieces = balanced_pieces(held, [set(), set(), {"a"}], unequal={"a"})
    assert _sent(pieces, 3) == [64 * MIB, 0, 0]


@st.composite
def _states(draw: st.DrawFn) -> tuple[list[State], list[set[str]]]:
    """What each of some ranks holds and wants: several keys, formats and sizes."""
    num_ranks = draw(st.integers(1, 4))
    state: State = {}
    for index in range(draw(st.integers(0, 6))):
        dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool])
        shapes = st.lists(st.integers(0, 5), max_size=3)
        state[f"p{index}"] = {
            key: (torch.randn(draw(shapes)) * 100).to(draw(dtypes))
            for key in draw(st.sampled_from([("value",), ("value", "step", "exp_avg")]))
        }
    ranks = st.sets(st.integers(0, num_ranks - 1))
    some = st.sets(st.integers(0, num_ranks - 1), min_size=1)
    holders = {name: draw(some) for name in state}
    wanting = {name: draw(ranks) - holders[name] for name in state}
    return (
        [{n: t for n, t in state.items() if rank in holders[n]} for rank in range(num_ranks)],
        [{n for n in state if rank in wanting[n]} for rank in range(num_ranks)],
    )


@given(found=_states(), piece_bytes=st.sampled_from([8, 100, PIECE_BYTES]))
@settings(max_examples=40, deadline=None)
def test_every_wanted_tensor_arrives_bit_by_bit(
    found: tuple[list[State], list[set[str]]], piece_bytes: int
) -> None:
    held, wanted = found
    layouts = [layouts_of(state) for state in held]
    box = LetterBox(len(held))

    def exchange(rank: int) -> State:
        peers = Peers(LocalGatherer(rank, box), LocalMessenger(rank, box))
        pieces = balanced_pieces(layouts, wanted)
        arriving = arriving_layouts(layouts, wanted[rank])
        return Transfer(peers, pieces, held[rank], arriving).finish()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_transfer, "PIECE_BYTES", piece_bytes)
        arrived = take_turns({str(rank): partial(exchange, rank) for rank in range(len(held))})
    whole = {name: tensors for state in held for name, tensors in state.items()}
    for rank, names in enumerate(wanted):
        assert arrived[str(rank)].keys() == names
        for name in names:
            own = arrived[str(rank)][name]
            assert own.keys() == whole[name].keys()
            assert all(torch.equal(tensor, whole[name][key]) for key, tensor in own.items())


@given(found=_states(), piece_bytes=st.sampled_from([8, 100, PIECE_BYTES]))
@settings(max_examples=40, deadline=None)
def test_each_byte_travels_once_and_loads_are_even(
    found: tuple[list[State], list[set[str]]], piece_bytes: int
) -> None:
    held, wanted = found
    layouts = [layouts_of(state) for state in held]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_transfer, "PIECE_BYTES", piece_bytes)
        pieces = balanced_pieces(layouts, wanted)
        messages = list(messages_of(pieces))
    size = {n: sum(t.nbytes for t in tensors.values()) for s in held for n, tensors in s.items()}
    assert sum(p.num_bytes for p in pieces) == sum(size[n] for names in wanted for n in names)
    assert len({(p.name, p.key, p.start, p.destination) for p in pieces}) == len(pieces)
    assert all(p.name in layouts[p.source] and p.name in wanted[p.destination] for p in pieces)
    assert sorted(p for message in messages for p in message) == sorted(pieces)
    for message in messages:
        assert len({(p.source, p.destination) for p in message}) == 1
        assert sum(p.num_bytes for p in message) <= piece_bytes
    # Where all ranks hold the same, nobody sends more than a piece above another.
    if pieces and all(own == layouts[0] for own in layouts):
        load = _sent(pieces, len(held))
        assert max(load) - min(load) <= piece_bytes
