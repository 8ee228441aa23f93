"""Who sends what: each byte once to each rank that wants it, evenly from all that hold it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from heterps_runtime.execution.local_turns import (
    LetterBox,
    LocalGatherer,
    LocalMessenger,
    take_turns,
)
from heterps_runtime.state import transfer as state_transfer
from heterps_runtime.state.layout import HeldState, Layouts, State, TensorLayout, places_of
from heterps_runtime.state.migrate import gathered_state
from heterps_runtime.state.transfer import (
    PIECE_BYTES,
    Cell,
    Peers,
    Piece,
    Transfer,
    balanced_pieces,
    messages_of,
    wanted_cells,
)
from heterps_runtime.tensor_parallel.regions import contains, copy_common, slice_around
from heterps_runtime.tensor_parallel.slices import TensorSlice

MIB = 2**20
LARGE: Layouts = {"a": (TensorLayout("value", (64 * MIB,), torch.uint8),)}


def _sent(pieces: Sequence[Piece], num_ranks: int) -> list[int]:
    return [sum(p.num_bytes for p in pieces if p.source == rank) for rank in range(num_ranks)]


def test_four_replicas_share_a_large_tensor() -> None:
    # Of 64 MiB, each of four holders sends a quarter.
    cells = wanted_cells([[*[LARGE] * 4, {}]], [{}, {}, {}, {}, LARGE])
    pieces = balanced_pieces(cells, 5)
    assert _sent(pieces, 5) == [16 * MIB] * 4 + [0]
    assert {piece.destination for piece in pieces} == {4}


def test_what_replicas_have_of_their_own_comes_from_the_first() -> None:
    cells = wanted_cells([[LARGE, LARGE, {}]], [{}, {}, LARGE])
    assert _sent(balanced_pieces(cells, 3, unequal={"a"}), 3) == [64 * MIB, 0, 0]


@st.composite
def _places(draw: st.DrawFn, shape: tuple[int, ...]) -> TensorSlice | None:
    """All of a tensor, or some runs along one of its dimensions, or nothing of it."""
    if not shape or draw(st.booleans()):
        return None
    dim = draw(st.integers(0, len(shape) - 1))
    edges = sorted(draw(st.sets(st.integers(0, shape[dim]), max_size=4)))
    ranges = tuple(zip(edges[::2], edges[1::2], strict=False))
    return TensorSlice(shape, dim, ranges)


class _Case:
    """Some ranks, what each holds and wants, and the whole tensors.

    Attributes:
        whole: All tensors.
        offers: What ranks hold, by rank: in two places.
        wanted: What they want.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self.num_ranks = draw(st.integers(1, 4))
        self.whole: State = {}
        dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool])
        for index in range(draw(st.integers(0, 4))):
            shape = draw(st.lists(st.integers(0, 5), max_size=3))
            self.whole[f"p{index}"] = {
                key: (torch.randn(shape if key != "step" else ()) * 100).to(draw(dtypes))
                for key in draw(st.sampled_from([("value",), ("value", "step", "exp_avg")]))
            }
        self.offers = [[self._drawn(draw) for _ in range(self.num_ranks)] for _ in range(2)]
        self.wanted = [self._drawn(draw) for _ in range(self.num_ranks)]

    def _drawn(self, draw: st.DrawFn) -> Layouts:
        found: Layouts = {}
        for name, tensors in self.whole.items():
            entries = []
            for key, tensor in tensors.items():
                if draw(st.booleans()):
                    layout = TensorLayout(key, tuple(tensor.shape), tensor.dtype)
                    entries.append(layout.part(draw(_places(layout.shape))))
            found[name] = tuple(entries)
        return found

    def state(self, layouts: Layouts) -> HeldState:
        """What a rank holds."""
        tensors: State = {}
        for name, entries in layouts.items():
            tensors[name] = {
                e.key: self.whole[name][e.key].clone()
                if e.place is None
                else _part(self.whole[name][e.key], e.place)
                for e in entries
            }
        return HeldState(tensors, places_of(layouts))

    @property
    def cells(self) -> list[Cell]:
        return list(wanted_cells(self.offers, self.wanted))


def _part(whole: Tensor, place: TensorSlice) -> Tensor:
    found = torch.empty(place.local_shape, dtype=whole.dtype)
    copy_common(whole, None, found, place)
    return found


_CASES = st.composite(_Case)()
_SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(case=_CASES, piece_bytes=st.sampled_from([8, 100, PIECE_BYTES]))
@_SETTINGS
def test_of_what_a_rank_wants_all_arrives_that_anybody_has(case: _Case, piece_bytes: int) -> None:
    box, cells = LetterBox(case.num_ranks), case.cells

    def exchange(rank: int) -> HeldState:
        peers = Peers(LocalGatherer(rank, box), LocalMessenger(rank, box))
        own = [case.state(offer[rank]) for offer in case.offers]
        here = [cell for cell in cells if cell.destination == rank]
        state = gathered_state(case.wanted[rank], here, own, rank)
        transfers = [
            Transfer(
                peers,
                balanced_pieces([c for c in cells if c.offer == number], case.num_ranks),
                held,
                state,
                first_tag=number * 2**20,
            )
            for number, held in enumerate(own)
        ]
        for transfer in transfers:
            transfer.finish()
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_transfer, "PIECE_BYTES", piece_bytes)
        arrived = take_turns({str(r): partial(exchange, r) for r in range(case.num_ranks)})
    for rank, layouts in enumerate(case.wanted):
        for name, entries in layouts.items():
            for layout in entries:
                found = arrived[str(rank)].tensors[name][layout.key]
                whole = case.whole[name][layout.key]
                expected = whole if layout.place is None else _part(whole, layout.place)
                mask = _known(case, name, layout)
                assert found.shape == expected.shape
                assert torch.equal(found[mask], expected[mask])


def _known(case: _Case, name: str, layout: TensorLayout) -> Tensor:
    """Which numbers of a part anybody has."""
    shape = layout.whole_shape
    known = torch.zeros(shape, dtype=torch.bool)
    for offer in case.offers:
        for own in offer:
            for other in own.get(name, ()):
                if other.key == layout.key:
                    ones = torch.ones(other.shape, dtype=torch.bool)
                    copy_common(ones, other.place, known, None)
    return known if layout.place is None else _part(known, layout.place)


@given(case=_CASES, piece_bytes=st.sampled_from([8, 100, PIECE_BYTES]))
@_SETTINGS
def test_each_byte_travels_once_from_the_nearest_and_loads_are_even(
    case: _Case, piece_bytes: int
) -> None:
    cells = case.cells
    for number, offer in enumerate(case.offers):
        own = [cell for cell in cells if cell.offer == number]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state_transfer, "PIECE_BYTES", piece_bytes)
            pieces = balanced_pieces(own, case.num_ranks)
            messages = list(messages_of(pieces))
        foreign = [cell for cell in own if cell.destination not in cell.holders]
        assert sum(p.num_bytes for p in pieces) == sum(cell.num_bytes for cell in foreign)
        assert len({(p.name, p.key, p.box, p.start, p.destination) for p in pieces}) == len(pieces)
        for piece in pieces:
            entries = offer[piece.source][piece.name]
            assert any(e.key == piece.key and contains(e.place, piece.box) for e in entries)
        assert sorted(p for message in messages for p in message) == sorted(pieces)
        for message in messages:
            assert len({(p.source, p.destination) for p in message}) == 1
            assert sum(p.num_bytes for p in message) <= piece_bytes
        # Where all ranks but one hold the same, nobody sends more than a piece above another.
        if pieces and all(held == offer[0] for held in offer[:-1]) and case.num_ranks > 1:
            load = _sent([p for p in pieces if p.destination == case.num_ranks - 1], case.num_ranks)
            assert max(load[:-1]) - min(load[:-1]) <= piece_bytes or any(offer[-1].values())
    # Together they are what is wanted.
    size = {
        (rank, name, e.key): e.num_bytes
        for rank, own_layouts in enumerate(case.wanted)
        for name, entries in own_layouts.items()
        for e in entries
    }
    for cell in cells:
        size[cell.destination, cell.name, cell.key] -= cell.num_bytes
    assert not any(size.values())


def test_the_smallest_slice_around_what_is_missing() -> None:
    shape = (8, 6)
    assert slice_around(shape, [((0, 2), (0, 6)), ((2, 3), (0, 6))]) == TensorSlice(
        shape, 0, ((0, 3),)
    )
    assert slice_around(shape, [((0, 8), (1, 2)), ((0, 8), (4, 5))]) == TensorSlice(
        shape, 1, ((1, 2), (4, 5))
    )
    assert slice_around(shape, [((0, 8), (0, 6))]) is None
