"""Tensors in pieces: any slice comes back from any pieces; what does not fit is refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps_configs.errors import HeterpsError
from heterps_envs.layer_costs.group_slice import unit_ranges
from heterps_runtime.state.checkpoint_files import tensors_path
from heterps_runtime.state.checkpoint_storage import StoredTensors, write_tensors
from heterps_runtime.state.checksums import FileSum, write_checksums
from heterps_runtime.state.stored_files import LocalFiles
from heterps_runtime.state.tensor_file import read_own_table
from heterps_runtime.state.tensor_pieces import check_complete, parse_place, place_text
from heterps_runtime.tensor_parallel.slices import TensorSlice

NAME = "model.weight"


def _pieces(
    shape: tuple[int, ...], dim: int, shares: list[float], sections: int
) -> list[TensorSlice]:
    """The slices of a group's ranks: the same share of each of so many sections of a dimension."""
    width = shape[dim] // sections
    return [
        TensorSlice(
            shape, dim, tuple((s * width + start, s * width + stop) for s in range(sections))
        )
        for start, stop in unit_ranges(width, tuple(shares))
    ]


_SHARES = st.lists(st.integers(1, 5).map(float), min_size=1, max_size=4)


@given(
    rows=st.integers(12, 24).filter(lambda n: n % 3 == 0),
    dim=st.integers(0, 1),
    written=_SHARES,
    wanted=_SHARES,
    sections=st.sampled_from([1, 3]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_slice_comes_back_from_any_pieces(
    rows: int, dim: int, written: list[float], wanted: list[float], sections: int
) -> None:
    shape = (rows, rows)
    whole = torch.randn(shape)
    with tempfile.TemporaryDirectory() as name:
        folder, sums = Path(name), []
        for rank, piece in enumerate(_pieces(shape, dim, written, sections)):
            write_tensors(folder, {NAME: piece.of(whole)}, None, rank, {NAME: piece})
            path = tensors_path(folder, rank)
            sums.append(FileSum.of(path, read_own_table(path)))
        write_checksums(folder, sums)
        saved = StoredTensors(LocalFiles(folder))
        found = saved.blank(NAME)
        saved.read({NAME: found})
        assert torch.equal(found, whole)
        # Packed otherwise: another model's sections do not matter to the bytes.
        for piece in _pieces(shape, dim, wanted, 1):
            part = saved.blank(NAME, piece)
            saved.read({NAME: part}, {NAME: piece})
            assert torch.equal(part, piece.of(whole))


@given(shares=_SHARES, sections=st.integers(1, 3), dim=st.integers(0, 2))
def test_place_is_read_as_it_was_written(shares: list[float], sections: int, dim: int) -> None:
    pieces = _pieces((36, 36, 36), dim, shares, sections)
    check_complete(pieces)
    assert [parse_place(place_text(piece)) for piece in pieces] == pieces
    if len(pieces) > 1:
        with pytest.raises(ValueError, match="gap"):
            check_complete(pieces[:-1])


@pytest.mark.parametrize(
    "text", ["", "0;4", "2;4,4;0-2", "0;4;2-2", "0;4;3-5", "0;4;2-3+1-2", "0;4;-1-2", "x;4;0-1"]
)
def test_place_outside_of_its_tensor_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="place"):
        parse_place(text)


def test_missing_piece_is_told(tmp_path: Path) -> None:
    whole = torch.randn(8, 2)
    first, _ = _pieces((8, 2), 0, [1.0, 1.0], 1)
    write_tensors(tmp_path, {NAME: first.of(whole)}, None, 0, {NAME: first})
    path = tensors_path(tmp_path, 0)
    write_checksums(tmp_path, [FileSum.of(path, read_own_table(path))])
    with pytest.raises(HeterpsError, match=r"'model.weight' has pieces that leave a gap"):
        StoredTensors(LocalFiles(tmp_path))
