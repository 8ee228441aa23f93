"""Sums of regions of gradients, between ranks that hold unlike parts of a parameter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from heterps_runtime.transport import region_sums
from heterps_runtime.transport.region_sums import RegionRing, RegionSum


class _Adding:
    """What others add to each piece, in the place of a sum over ranks."""

    def __init__(self, others: float) -> None:
        self.others, self.sizes = others, list[int]()

    def start(self, tensor: Tensor) -> _Adding:
        tensor += self.others
        self.sizes.append(tensor.nbytes)
        return self

    def wait(self) -> None:
        """It is done."""

    def is_completed(self) -> bool:
        """At once."""
        return True


def _whole(gradient: Tensor) -> Tensor:
    return gradient


def _columns(first: int, end: int) -> Callable[[Tensor], Tensor]:
    return lambda gradient: gradient[:, first:end]


def test_each_region_gets_the_sum_of_its_own_ring() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3))
    parameter.grad = torch.ones(2, 3)
    left, right = _Adding(10.0), _Adding(100.0)
    RegionSum(
        [
            RegionRing(left.start, False, [(parameter, _columns(0, 1))]),
            RegionRing(right.start, False, [(parameter, _columns(1, 3))]),
        ]
    ).finish()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [[11, 101, 101], [11, 101, 101]]


def test_a_rank_that_listens_adds_nothing() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    parameter.grad = torch.full((3,), 5.0)
    RegionSum([RegionRing(_Adding(7.0).start, True, [(parameter, _whole)])]).finish()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [7, 7, 7]


@pytest.mark.parametrize(("others", "has_gradient"), [(0.0, False), (1.0, True)])
def test_what_no_rank_used_has_no_gradient(others: float, has_gradient: bool) -> None:
    parameter = nn.Parameter(torch.zeros(3))
    RegionSum([RegionRing(_Adding(others).start, False, [(parameter, _whole)])]).finish()
    assert (parameter.grad is not None) == has_gradient


def test_no_more_than_a_piece_is_copied_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_sums, "REDUCE_COPY_BYTES", 64)
    large, small = nn.Parameter(torch.zeros(20, 6)), nn.Parameter(torch.zeros(3))
    for parameter in (large, small):
        parameter.grad = torch.ones_like(parameter)
    adding = _Adding(1.0)
    regions = [(large, _columns(1, 5)), (small, _whole)]
    RegionSum([RegionRing(adding.start, False, regions)]).finish()
    assert max(adding.sizes) == 64
    assert large.grad is not None
    assert large.grad.tolist() == [[1, 2, 2, 2, 2, 1]] * 20
    assert small.grad is not None
    assert small.grad.tolist() == [2, 2, 2]
