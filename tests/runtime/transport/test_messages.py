"""What is packed is found again."""

from __future__ import annotations

import torch
from torch import Tensor

from heterps_runtime.models.recording import TensorSpec
from heterps_runtime.transport.messages import Layout, pack


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tensor.dtype, True)


def test_tensors_of_several_shapes_and_dtypes_are_found_again() -> None:
    tensors = [
        torch.randn(2, 3),
        None,
        torch.arange(4),
        torch.randn(3, 2).t(),
        torch.tensor(1.5),
        torch.randn(2, 0),
    ]
    sent = pack(tensors)
    assert [buffer.dtype for buffer in sent] == [torch.float32, torch.int64]
    buffers, found = Layout([None if t is None else _spec(t) for t in tensors]).allocate()
    for buffer, content in zip(buffers, sent, strict=True):
        buffer.copy_(content.reshape(-1))
    for before, after in zip(tensors, found, strict=True):
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert torch.equal(before, after)
            assert after.requires_grad_(after.is_floating_point()).is_leaf


def test_single_tensor_is_not_copied() -> None:
    tensor = torch.randn(2, 3)
    (buffer,) = pack([tensor])
    assert buffer.data_ptr() == tensor.data_ptr()


def test_nothing_to_send_needs_no_buffer() -> None:
    assert pack([None]) == []
    assert Layout([None]).allocate() == ([], [None])
