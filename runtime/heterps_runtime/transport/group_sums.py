"""Sums over the ranks of a tensor-parallel group, in the middle of their passes."""

from __future__ import annotations

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
    """

    def __init__(self, group: dist.ProcessGroup, *, is_on_device: bool) -> None:
        self._group, self._is_on_device = group, is_on_device

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the ranks' tensors, in memory of its own."""
        return self._reduced(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """The largest of the ranks' numbers, one by one."""
        return self._reduced(tensor, dist.ReduceOp.MAX)

    def _reduced(self, tensor: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        carrier = tensor.device if self._is_on_device else CPU
        carried = tensor.detach().to(carrier, copy=True).contiguous()
        with talking():
            dist.all_reduce(carried, operation, group=self._group)
        return carried.to(tensor.device)


def group_sums(
    specification: RunSpecification, device: str, communicator: Communicator
) -> GroupSums | None:
    """The sums of a device's group; None where it is alone. All ranks of a run call it together."""
    groups = communicator.groups(specification.group_ranks)
    own = next((ranks for ranks in groups if communicator.rank in ranks), None)
    if own is None or device not in specification.memberships:
        return None
    is_on_device = communicator.device.type == "cpu" or communicator.backend_of(own) == "nccl"
    return GroupSums(groups[own], is_on_device=is_on_device)
