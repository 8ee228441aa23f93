"""The importer of published block times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heterps_configs.documents.device import shipped_device_types
from heterps_configs.errors import DocumentError
from heterps_configs.importers.cephalo import BLOCKS, GPUS, LINE_SIZES, load_block_times

TABLE = [[1.0, 0.5], [2.0, -0.25], [1.5, 2.5, 3.5], [1.75, 3.75]]


def written(path: Path, entry: object, model: str = "deepspeedllama_7b", gpu: str = "t4") -> Path:
    """A file with one table."""
    path.write_text(json.dumps({model: {gpu: {"512": {"float16": entry}}}}))
    return path


def test_a_table_gives_seconds_of_both_passes_at_the_sizes_that_have_both(tmp_path: Path) -> None:
    (found,) = load_block_times(written(tmp_path / "times.json", TABLE))
    assert (found.gpu, found.sequence_length, found.dtype) == ("T4", 512, "float16")
    assert found.micro_batch_sizes == (1, 2)
    assert found.forward_s == pytest.approx((1.5e-3, 2.5e-3))
    assert found.backward_s == pytest.approx((1.75e-3, 3.75e-3))
    assert not found.is_line


def test_two_lines_are_read_at_a_few_sizes(tmp_path: Path) -> None:
    (found,) = load_block_times(written(tmp_path / "times.json", TABLE[:2]))
    assert found.is_line
    assert found.micro_batch_sizes == LINE_SIZES
    assert found.backward_s == pytest.approx([2e-3 * size - 0.25e-3 for size in LINE_SIZES])


@pytest.mark.parametrize("entry", [5.6, [5.6, 1.0], []])
def test_older_layouts_are_left_out(tmp_path: Path, entry: object) -> None:
    assert load_block_times(written(tmp_path / "times.json", entry)) == []


def test_models_and_gpus_without_known_sizes_are_left_out(tmp_path: Path) -> None:
    assert load_block_times(written(tmp_path / "a.json", TABLE, model="unknown")) == []
    assert load_block_times(written(tmp_path / "b.json", TABLE, gpu="unknown")) == []


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ([[1.0, 2.0]], "two or four lists"),
        ([[1.0], [2.0, 1.0]], "a slope and an intercept"),
        ([[1.0, 2.0], [1.0, 2.0], ["x"], [1.0]], "float16"),
    ],
)
def test_a_malformed_table_names_its_place(tmp_path: Path, entry: object, what: str) -> None:
    with pytest.raises(DocumentError, match=what) as caught:
        load_block_times(written(tmp_path / "times.json", entry))
    assert "times.json" in str(caught.value)
    assert "deepspeedllama_7b.t4.512" in str(caught.value)


def test_keys_that_are_no_length_and_no_format_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"deepspeedllama_7b": {"t4": {"long": {"float16": TABLE}}}}))
    with pytest.raises(DocumentError, match="sequence length"):
        load_block_times(path)
    path.write_text(json.dumps({"deepspeedllama_7b": {"t4": {"512": {"int8": TABLE}}}}))
    with pytest.raises(DocumentError, match="float16 or float32"):
        load_block_times(path)


def test_every_gpu_is_a_shipped_type_and_blocks_divide_into_heads() -> None:
    assert set(GPUS.values()) <= shipped_device_types().keys()
    assert all(block.hidden_size % block.num_heads == 0 for block in BLOCKS.values())
