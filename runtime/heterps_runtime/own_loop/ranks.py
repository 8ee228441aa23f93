"""The processes of a user's own loop: how one joins the others, agrees with them and leaves.

Started by torchrun they meet as its variables say; without it there is one process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_runtime.own_loop.plan import compute_device
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.shared_failures import AgreedError, SharedFailures

_Value = TypeVar("_Value")
_LEAVE_TIMEOUT = timedelta(seconds=5)


class Ranks:
    """All processes of a training run, seen from one of them; made at the same time on each.

    Args:
        plan: Names the devices, in the order of ranks.
        chosen: Where this rank computes, as its user wants it; None for what the plan says.

    Attributes:
        communicator: The processes.
        device: The plan's name of this rank's device.
        failures: The errors that one rank has and all raise.

    Raises:
        HeterpsError: The host has no such device.
    """

    def __init__(self, plan: Plan, chosen: str | torch.device | None) -> None:
        if "RANK" not in os.environ and not dist.is_initialized():
            store = torch._C._distributed_c10d.HashStore()
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        rank = int(os.environ.get("RANK", "0"))
        self.communicator = Communicator(compute_device(plan, rank, chosen))
        self._devices = plan.devices
        self.device = plan.devices[rank]
        self.failures = SharedFailures(self.communicator, self.device)
        # A group that is left to the interpreter's end is torn down in any order, and may abort.
        atexit.register(_leave, self.failures)

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which does what is done once."""
        return self.communicator.rank == 0

    def together(self, make: Callable[[], _Value]) -> _Value:
        """What `make` returns; where it fails on one rank, all ranks raise the same error.

        Args:
            make: Sends no message, so that no rank waits for one that failed.

        Raises:
            AgreedError: It failed somewhere; all ranks may go on.
            HeterpsError: A rank failed for good, now or before.
        """
        self.failures.check()
        messages: list[str] = []
        made: list[_Value] = []
        try:
            made.append(make())
        except Exception as error:
            is_own = isinstance(error, HeterpsError)
            messages = [str(error) if is_own else f"{type(error).__name__}: {error}"]
        with self.failures.shared():
            gathered = self.communicator.gather(messages, list[str])
        for rank, found in enumerate(gathered):
            if found:
                raise AgreedError(f"rank {rank} ({self._devices[rank]}): {found[0]}")
        return made[0]


def _leave(failures: SharedFailures) -> None:
    """Ends the process group with the other ranks: one that goes early may abort the others."""
    if not dist.is_initialized():
        return
    error = getattr(sys, "last_value", None)
    if error is not None:
        # A rank that fails does not wait for those that wait for its messages.
        failures.tell(error)
    else:
        with contextlib.suppress(RuntimeError):
            dist.monitored_barrier(timeout=_LEAVE_TIMEOUT)
    dist.destroy_process_group()
