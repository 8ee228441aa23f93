"""Jobs: how a batch is cut, and how many bytes a parameter takes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.base import Document, Dtype
from heterps_configs.documents.cluster import Node
from heterps_configs.documents.job import Job, Optimizer, Strategy
from heterps_configs.errors import DocumentError


@given(batch=st.integers(1, 300), data=st.data())
def test_micro_batches_cover_the_batch_and_only_the_last_is_smaller(
    batch: int, data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, batch))
    job = Job(global_batch_size=batch, micro_batch_size=size)
    assert sum(job.micro_batch_sizes) == batch
    assert len(job.micro_batch_sizes) == job.num_micro_batches
    assert set(job.micro_batch_sizes[:-1]) <= {size}
    assert 0 < job.micro_batch_sizes[-1] <= size


def test_a_job_may_state_the_size_of_every_micro_batch() -> None:
    job = Job(global_batch_size=12, micro_batch_size=6, unequal_micro_batch_sizes=(2, 6, 1, 3))
    assert job.micro_batch_sizes == (2, 6, 1, 3)
    assert job.num_micro_batches == 4


@pytest.mark.parametrize(
    ("dtype", "optimizer", "num_bytes"),
    [
        ("float32", "adamw", 16),
        ("bfloat16", "adamw", 16),
        ("float32", "sgd", 8),
        ("float32", "sgd-momentum", 12),
        ("float16", "sgd", 8),
        ("mixed-bfloat16", "adamw", 16),
        ("tf32", "adamw", 16),
    ],
)
def test_state_counts_weight_gradient_moments_and_master_copy(
    dtype: Dtype, optimizer: Optimizer, num_bytes: int
) -> None:
    assert Job(dtype=dtype, optimizer=optimizer).state_bytes_per_parameter == num_bytes
    averaging = Job(dtype=dtype, optimizer=optimizer, averages_parameters=True)
    assert averaging.state_bytes_per_parameter == num_bytes + 4


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"global_batch_size": 4, "micro_batch_size": 8},
            "micro_batch_size: 8 is larger than global_batch_size 4",
        ),
        (
            {"global_batch_size": 8, "micro_batch_size": 4, "unequal_micro_batch_sizes": [4, 3]},
            "unequal_micro_batch_sizes: their sum is 7; it must be global_batch_size, 8",
        ),
        (
            {"global_batch_size": 8, "micro_batch_size": 4, "unequal_micro_batch_sizes": [3, 5]},
            "unequal_micro_batch_sizes: the largest is 5; it must be micro_batch_size, 4",
        ),
        (
            {"global_batch_size": 4, "micro_batch_size": 4, "unequal_micro_batch_sizes": [4, 0]},
            "unequal_micro_batch_sizes.1: must be greater than 0, got 0",
        ),
        ({"global_batch_size": 0}, "global_batch_size: must be greater than 0, got 0"),
        ({"micro_batch_size": 1.5}, "micro_batch_size: must be a whole number, got 1.5"),
        (
            {"dtype": "fp16"},
            "dtype: must be 'float32', 'tf32', 'float16', 'bfloat16' or 'mixed-bfloat16', "
            "got 'fp16'",
        ),
        ({"objective": "speed"}, "objective: must be 'throughput' or 'price', got 'speed'"),
        (
            {"min_throughput_samples_per_s": "fast"},
            "min_throughput_samples_per_s: must be a plain number of samples per second, "
            "got 'fast'",
        ),
        ({"batch_size": 4}, "batch_size: unknown field; did you mean 'micro_batch_size'?"),
    ],
)
def test_a_wrong_job_gets_one_clear_line(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(DocumentError) as caught:
        Job.from_mapping(fields, "job.yaml")
    assert str(caught.value) == f"job.yaml: {problem}"


def test_too_many_micro_batches_are_told_with_the_size_that_is_enough() -> None:
    with pytest.raises(DocumentError, match="at most 65536: micro_batch_size must be at least 2"):
        Job.from_mapping({"global_batch_size": 100_000})
    assert Job(global_batch_size=100_000, micro_batch_size=2).num_micro_batches == 50_000


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tensor_parallel": 2}, "Strategy: tensor_parallel: must be a list, got 2"),
        ({"tensor_paralel": (1,)}, "tensor_paralel: unknown field; did you mean 'tensor_parallel'"),
        ({"recompute": "full", "offload": "auto"}, "Strategy: offload: auto, but recompute is"),
    ],
)
def test_a_strategy_made_by_hand_tells_what_is_wrong(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(DocumentError, match=problem):
        Strategy(**fields)
    assert Strategy().changed(tensor_parallel=(1, 2)) == Strategy(tensor_parallel=(1, 2))


def test_any_document_made_by_hand_tells_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DocumentError, match="Job: global_batch_size: must be greater than 0"):
        Job(global_batch_size=0)
    with pytest.raises(DocumentError, match=r"Node: name: .*; devices: needs at least 1 entry"):
        Node(name="", devices=())
    # What stands in a file is read without it, which would take many times as long.
    monkeypatch.setattr(Document, "__init__", None)
    node = Node.from_mapping({"name": "n", "devices": [{"name": "d", "type": "T4"}]})
    assert node.devices[0].name == "d"
