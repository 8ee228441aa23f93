"""Messages of ranks that compute on GPUs: nccl between two GPUs, else through pinned host memory.

nccl knows no tags and carries one message after the other in a group. So each pair of ranks and
each direction has a group of two of its own: a receive that is posted early holds up nothing else.
Where a pair's messages are not received in the order in which they are sent, the pair goes through
host memory and gloo, whose tags sort them out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_runtime.specification.devices import CPU, Place, backend_of
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.lost_ranks import CheckedWork, talking
from heterps_runtime.transport.messenger import Direction, Messenger, ProcessMessenger, Work


class Channel(NamedTuple):
    """One way of messages between two ranks."""

    source: int
    destination: int
    direction: Direction


def channels_of(specification: RunSpecification) -> dict[Channel, bool]:
    """All channels that the action lists use, and whether messages arrive in the order of sends."""
    ranks = specification.ranks
    sent: dict[Channel, list[tuple[str | None, int]]] = {}
    received: dict[Channel, list[tuple[str | None, int]]] = {}
    stage_behind = _stages_behind(specification)
    for device, actions in specification.actions.items():
        for action in actions:
            if action.kind not in ("send", "receive"):
                continue
            direction: Direction = "forward" if action.direction == "forward" else "backward"
            own, peer, is_send = ranks[device], ranks[action.peer], action.kind == "send"
            pair = (own, peer) if is_send else (peer, own)
            # A message is known by the stage behind its cut.
            is_front = is_send == (direction == "forward")
            key = action.stage, action.micro_batch
            message = (stage_behind[key] if is_front else action.stage), action.micro_batch
            (sent if is_send else received).setdefault(Channel(*pair, direction), []).append(
                message
            )
    return {channel: sent[channel] == received[channel] for channel in sorted(sent)}


def _stages_behind(specification: RunSpecification) -> dict[tuple[str, int], str | None]:
    return {
        (name, micro_batch): behind
        for pipeline in specification.plan.pipelines
        for micro_batch in pipeline.micro_batches
        for name, behind in zip(pipeline.stages, (*pipeline.stages[1:], None), strict=True)
    }


def nccl_channels(specification: RunSpecification, places: list[Place]) -> list[Channel]:
    """The channels that nccl carries, in an order that is the same on all ranks."""
    return [
        channel
        for channel, is_ordered in channels_of(specification).items()
        if is_ordered and backend_of(channel[:2], places) == "nccl"
    ]


def messenger_for(specification: RunSpecification, communicator: Communicator) -> Messenger:
    """What carries the messages of one plan; all ranks call it together."""
    if all(place.device == "cpu" for place in communicator.places):
        return ProcessMessenger(communicator)
    groups = {
        channel: communicator.channel(channel, sorted(channel[:2]))
        for channel in nccl_channels(specification, communicator.places)
        if communicator.has_nccl
    }
    return DeviceMessenger(communicator, groups)


class DeviceMessenger:
    """Messages between processes some of which compute on GPUs.

    Args:
        communicator: The processes.
        groups: Of two ranks each, for the channels that nccl carries.
    """

    def __init__(
        self, communicator: Communicator, groups: dict[Channel, dist.ProcessGroup]
    ) -> None:
        self._communicator, self._groups = communicator, groups
        self._rank = communicator.rank
        self._plain = ProcessMessenger(communicator)
        # One thread waits for copies to host memory, so that the device is kept busy meanwhile.
        self._sender = ThreadPoolExecutor(1, "heterps-send")

    def receive(self, buffer: Tensor, source: int, direction: Direction, tag: int) -> Work:
        """Asks for a message of rank `source`."""
        group = self._groups.get(Channel(source, self._rank, direction))
        if group is not None:
            with talking():
                return CheckedWork(group.recv([buffer], int(source > self._rank), 0))
        if not self._is_staged(buffer):
            return self._plain.receive(buffer, source, direction, tag)
        host = host_copy_of(buffer)
        work = self._plain.receive(host, source, direction, tag)
        return _Arriving(work, lambda: buffer.copy_(host, non_blocking=True))

    def send(self, buffer: Tensor, destination: int, direction: Direction, tag: int) -> Work:
        """Sends to rank `destination`."""
        group = self._groups.get(Channel(self._rank, destination, direction))
        if group is not None:
            with talking():
                return CheckedWork(group.send([buffer], int(destination > self._rank), 0))
        if not self._is_staged(buffer):
            return self._plain.send(buffer, destination, direction, tag)
        host = host_copy_of(buffer)
        host.copy_(buffer, non_blocking=True)
        wait_for_copy = self._copy_mark(buffer)

        def send_copy() -> Work:
            wait_for_copy()
            return self._plain.send(host, destination, direction, tag)

        return _Leaving(self._sender.submit(send_copy))

    def start_sum(self, flat: Tensor, ranks: tuple[int, ...]) -> Work:
        """Starts one all-reduce, where the group's backend can read it.

        The device is not waited for: what goes through host memory is copied there meanwhile. The
        one thread that sends starts sums in the order in which they were asked for.
        """
        if not self._is_staged(flat) or self._communicator.backend_of(ranks) == "nccl":
            return self._plain.start_sum(flat, ranks)
        self._communicator.groups([ranks])
        host = host_copy_of(flat)
        host.copy_(flat, non_blocking=True)
        wait_for_copy = self._copy_mark(flat)

        def sum_copy() -> Work:
            wait_for_copy()
            return self._plain.start_sum(host, ranks)

        leaving = _Leaving(self._sender.submit(sum_copy))
        return _Arriving(leaving, lambda: flat.copy_(host, non_blocking=True))

    def gather(self, flat: Tensor, ranks: tuple[int, ...]) -> Sequence[Tensor]:
        """One all-gather, where the group's backend can read the memory."""
        is_nccl = self._communicator.backend_of(ranks) == "nccl"
        carried = flat.to(self._communicator.device if is_nccl else CPU)
        return [part.to(flat.device) for part in self._plain.gather(carried, ranks)]

    def latest_s(self, time_s: float, ranks: tuple[int, ...]) -> float:
        """Of emulated devices, which compute on CPUs."""
        return self._plain.latest_s(time_s, ranks)

    def _is_staged(self, buffer: Tensor) -> bool:
        """Whether gloo cannot read the buffer."""
        return buffer.is_cuda

    def _copy_mark(self, buffer: Tensor) -> Callable[[], None]:
        """Returns when what the device was asked until now is done."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(buffer.device))
        wait: Callable[[], None] = event.synchronize
        return wait


def host_copy_of(buffer: Tensor) -> Tensor:
    """Host memory of the same shape, pinned where the buffer is on a GPU."""
    return torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=buffer.is_cuda)


class _Arriving:
    """A message or sum that is copied to its place once it has arrived."""

    def __init__(self, work: Work, place: Callable[[], object]) -> None:
        self._work, self._place = work, place

    def wait(self) -> None:
        self._work.wait()
        self._place()

    def is_completed(self) -> bool:
        return self._work.is_completed()


class _Leaving:
    """A message or sum that begins once it has been copied to host memory."""

    def __init__(self, sending: Future[Work]) -> None:
        self._sending = sending

    def wait(self) -> None:
        self._sending.result().wait()

    def is_completed(self) -> bool:
        return self._sending.done() and self._sending.result().is_completed()
