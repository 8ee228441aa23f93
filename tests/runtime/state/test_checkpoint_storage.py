"""Tensors by name: what was written comes back, whole or in parts, or the error is clear."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_files import tensors_path
from heterps_runtime.state.checkpoint_storage import StoredTensors, write_tensors
from heterps_runtime.state.checksums import FileSum, write_checksums
from heterps_runtime.state.stored_files import LocalFiles
from heterps_runtime.state.tensor_file import flat_bytes, read_own_table

_NAMES = st.text('abcdefgh._0123456789é"\n', min_size=1, max_size=12).map("model.{}".format)
_SHAPES = st.lists(st.integers(0, 4), max_size=3)
_DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool])


def _tensor(shape: list[int], dtype: torch.dtype, is_turned: bool) -> Tensor:
    values = (torch.randn(shape) * 100).to(dtype)
    return values.transpose(0, -1) if is_turned and shape else values


def published(folder: Path) -> Path:
    """With the checksums of what one rank wrote."""
    path = tensors_path(folder, 0)
    write_checksums(folder, [FileSum.of(path, read_own_table(path))])
    return folder


@given(
    tensors=st.dictionaries(
        _NAMES, st.builds(_tensor, _SHAPES, _DTYPES, st.booleans()), min_size=1, max_size=5
    ),
    data=st.data(),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_part_comes_back_bit_by_bit(tensors: dict[str, Tensor], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tensors(Path(folder), tensors, group=None, rank=0)
        saved = StoredTensors(LocalFiles(published(Path(folder))))
        assert set(saved.names) == set(tensors)
        wanted = data.draw(st.sets(st.sampled_from(sorted(tensors))))
        read = {name: saved.blank(name) for name in wanted}
        saved.read(read)
        assert all(torch.equal(read[name], tensors[name]) for name in wanted)
        assert all(flat_bytes(read[name]) == flat_bytes(tensors[name]) for name in wanted)


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    write_tensors(tmp_path, {"model.a": torch.zeros(2, 3)}, group=None, rank=0)
    saved = StoredTensors(LocalFiles(published(tmp_path)))
    with pytest.raises(HeterpsError, match=r"has no tensor 'model\.b'"):
        saved.read({"model.b": torch.zeros(1)})
    with pytest.raises(
        HeterpsError, match=r"model.a is \(2, 3\) of torch.float32, and the model's is"
    ):
        saved.read({"model.a": torch.zeros(3, 2)})


def test_file_that_cannot_grow_is_one_clear_message(tmp_path: Path) -> None:
    # What a full disk does: the system refuses to write on.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(HeterpsError, match=r"^File too large"):
            write_tensors(tmp_path, {"a": torch.zeros(10_000)}, group=None, rank=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
