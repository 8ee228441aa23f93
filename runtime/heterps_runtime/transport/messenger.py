"""The messenger: how one device's messages and gradient sums travel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_runtime.transport.communication import TIMEOUT, Communicator
from heterps_runtime.transport.lost_ranks import CheckedWork, LostRankError, talking

Direction = Literal["forward", "backward"]


class Work(Protocol):
    """Something under way."""

    def wait(self) -> object:
        """Returns when it is done."""
        ...

    def is_completed(self) -> bool:
        """Whether it is done; a process group may learn of it only by waiting."""
        ...


class Messenger(Protocol):
    """What the executor needs of the world outside its device."""

    def receive(self, buffer: Tensor, source: int, direction: Direction, tag: int) -> Work:
        """Asks for a message of rank `source`; the buffer is filled when the work is done."""
        ...

    def send(self, buffer: Tensor, destination: int, direction: Direction, tag: int) -> Work:
        """Sends to rank `destination`; the buffer must stay as it is until the work is done."""
        ...

    def start_sum(self, flat: Tensor, ranks: tuple[int, ...]) -> Work:
        """Begins to replace `flat` by its sum over some ranks; all of them call it in one order."""
        ...

    def gather(self, flat: Tensor, ranks: tuple[int, ...]) -> Sequence[Tensor]:
        """What some ranks have, in their order; all of them call it with equally long ones."""
        ...

    def latest_s(self, time_s: float, ranks: tuple[int, ...]) -> float:
        """The largest of the times of some ranks; all of them call it."""
        ...


class ProcessMessenger:
    """Messages between the processes of a run.

    It calls the process groups directly: `torch.distributed.isend` checks its arguments anew for
    each message, which takes as long as sending.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._groups = communicator.directions
        # A message may take longer than its group was given to connect.
        self._limit = None if communicator.connect_timeout is None else TIMEOUT

    def receive(self, buffer: Tensor, source: int, direction: Direction, tag: int) -> Work:
        """Asks for a message of rank `source`."""
        group = self._groups[direction]
        try:
            return CheckedWork(group.recv([buffer], source, tag), self._limit)
        except RuntimeError as error:
            raise LostRankError(str(error)) from error

    def send(self, buffer: Tensor, destination: int, direction: Direction, tag: int) -> Work:
        """Sends to rank `destination`."""
        group = self._groups[direction]
        try:
            return CheckedWork(group.send([buffer], destination, tag), self._limit)
        except RuntimeError as error:
            raise LostRankError(str(error)) from error

    def start_sum(self, flat: Tensor, ranks: tuple[int, ...]) -> Work:
        """Starts one all-reduce."""
        group = self._communicator.groups([ranks])[ranks]
        with talking():
            work: dist.Work | None = dist.all_reduce(flat, group=group, async_op=True)
        assert work is not None, "a rank outside the group takes part"
        return CheckedWork(work)

    def gather(self, flat: Tensor, ranks: tuple[int, ...]) -> Sequence[Tensor]:
        """One all-gather."""
        group = self._communicator.groups([ranks])[ranks]
        gathered = [torch.empty_like(flat) for _ in ranks]
        with talking():
            dist.all_gather(gathered, flat, group=group)
        return gathered

    def latest_s(self, time_s: float, ranks: tuple[int, ...]) -> float:
        """One all-reduce of one number."""
        own = torch.tensor([time_s], dtype=torch.float64)
        group = self._communicator.groups([ranks])[ranks]
        with talking():
            dist.all_reduce(own, dist.ReduceOp.MAX, group=group)
        return float(own)
