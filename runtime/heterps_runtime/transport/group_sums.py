"""Sums over the ranks of a tensor-parallel group, in the middle of their passes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_runtime.specification.devices import CPU
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.lost_ranks import talking


class GroupSums:
    """Sums and maxima over one group; all its ranks call every method in one order.

    Args:
        group: The process group.
        is_on_device: Whether it can read the memory of this rank's device.

    Attributes:
        waited_s: Seconds that this rank has spent in them: their own, and those of waiting for
            ranks that come later. Of sums that a GPU does on its own, what starting them took.
    """

    def __init__(self, group: dist.ProcessGroup, *, is_on_device: bool) -> None:
        self._group, self._is_on_device, self.waited_s = group, is_on_device, 0.0

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the ranks' tensors, in memory of its own."""
        return self._timed(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """The largest of the ranks' numbers, one by one."""
        return self._timed(tensor, dist.ReduceOp.MAX)

    def _timed(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        began_s = time.perf_counter()
        found = self._reduced(tensor, operation)
        self.waited_s += time.perf_counter() - began_s
        return found

    def _reduced(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        carrier = tensor.device if self._is_on_device else CPU
        carried = tensor.detach().to(carrier, copy=True).contiguous()
        with talking():
            dist.all_reduce(carried, operation, group=self._group)
        return carried.to(tensor.device)


class ExchangedSums(GroupSums):
    """The same where ranks may be lost: every rank sends what it has to all others.

    gloo's own sum waits until its messages have left, and where a connection ends in the middle of
    one it waits for ever (half an hour, its limit). A pass has many sums, so a rank that is lost
    would often take its group along. Who only waits for what comes gets an error. For two ranks no
    byte more travels than in a ring, and one message after the other is saved; all ranks add in one
    order, so that they have the same sums.

    Args:
        group: The process group, over gloo.
        ranks: Its ranks.
        rank: The own one.
    """

    def __init__(self, group: dist.ProcessGroup, ranks: Sequence[int], rank: int) -> None:
        super().__init__(group, is_on_device=False)
        self._ranks, self._rank = ranks, rank
        # Messages of the last sum: those of the next show that they have arrived.
        self._sent: list[tuple[dist.Work | None, Tensor]] = []

    def _reduced(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        own = tensor.detach().to(CPU, copy=True).contiguous()
        parts = {rank: own if rank == self._rank else torch.empty_like(own) for rank in self._ranks}
        others = [rank for rank in self._ranks if rank != self._rank]
        with talking():
            works = [dist.irecv(parts[rank], rank, group=self._group) for rank in others]
            sent = [(dist.isend(own, rank, group=self._group), own) for rank in others]
            for work in works:
                assert work is not None
                work.wait()
        self._sent = sent
        add = torch.maximum if operation == dist.ReduceOp.MAX else torch.add
        return reduce(add, parts.values()).to(tensor.device)


def group_sums(
    specification: RunSpecification, device: str, communicator: Communicator
) -> GroupSums | None:
    """The sums of a device's group; None where it is alone. All ranks of a run call it together."""
    groups = communicator.groups(specification.group_ranks)
    own = next((ranks for ranks in groups if communicator.rank in ranks), None)
    if own is None or device not in specification.memberships:
        return None
    if communicator.may_lose_ranks:
        return ExchangedSums(groups[own], own, communicator.rank)
    is_on_device = communicator.device.type == "cpu" or communicator.backend_of(own) == "nccl"
    return GroupSums(groups[own], is_on_device=is_on_device)
