"""The messages of a device in a step: receives are posted ahead, no send keeps it waiting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from heterps_envs.layer_costs.memory_rule import posted_ahead
from heterps_runtime.execution.emulation import Clock, EmulatedLinks
from heterps_runtime.execution.program import STAMP_TAG, Message, Step
from heterps_runtime.stages.backward import leaves
from heterps_runtime.transport.messages import pack
from heterps_runtime.transport.messenger import Messenger


class DeviceMessages:
    """Carries out the sends and receives of one device's action list.

    Args:
        program: The list, resolved.
        messenger: Carries the messages.
        clock: The device's time.
        links: The device's emulated ones; None where messages take what they take.
    """

    def __init__(
        self,
        program: Sequence[Step],
        messenger: Messenger,
        clock: Clock,
        links: EmulatedLinks | None,
    ) -> None:
        self._messenger, self._clock, self._links = messenger, clock, links
        messages = [step for step in program if isinstance(step, Message)]
        self._receives = [m for m in messages if m.action.kind == "receive"]
        self._sends = [m for m in messages if m.action.kind == "send"]
        layouts = [message.layout for message in self._receives]
        largest = max((layout.num_bytes for layout in layouts if layout), default=0)
        self._posted_ahead = int(posted_ahead(np.float64(largest)))
        self._num_posted, self._expected = 0, self._receives

    def begin(self, *, is_forward_only: bool = False) -> None:
        """Posts the first receives of a step.

        Args:
            is_forward_only: Whether no gradients come in this step.
        """
        self._num_posted, self._expected = 0, self._receives
        if is_forward_only:
            self._expected = [each for each in self._receives if each.direction == "forward"]
        for _ in range(self._posted_ahead):
            self._post_next()

    def receive(self, message: Message) -> tuple[float, float]:
        """Waits for a message, and posts another; returns when that began and ended."""
        clock = self._clock
        began_s = clock.now_s
        wait_for(message)
        if message.stamp is not None:
            clock.wait_until(float(message.stamp))
        tensors, message.tensors = message.tensors, ()
        if message.direction == "forward":
            message.cell.received = leaves(tensors, message.requires_grad)
        else:
            message.cell.gradients = tuple(tensors)
        for sent in message.confirms:
            wait_for(sent)
        self._post_next()
        return began_s, clock.now_s

    def send(self, message: Message) -> tuple[float, float]:
        """Hands a message over; returns the moment, as begin and end."""
        departure_s = self._clock.now_s
        rank, direction, tag = message.rank, message.direction, message.tag
        # The works keep the buffers.
        buffers = pack(message.tensors)
        message.tensors = ()
        for offset, buffer in enumerate(buffers):
            message.works.append(self._messenger.send(buffer, rank, direction, tag + offset))
        if self._links:
            num_bytes = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
            arrival_s = self._links.arrival_s(message.action.peer, num_bytes, departure_s)
            message.works.append(
                self._messenger.send(_stamp(arrival_s), rank, direction, tag + STAMP_TAG)
            )
        return departure_s, departure_s

    def gradients_to_send(self) -> list[Tensor | None]:
        """Gradients that are made and not yet sent."""
        backward = [message for message in self._sends if message.direction == "backward"]
        return [tensor for message in backward for tensor in message.tensors]

    def finish(self) -> None:
        """Waits for what is still being sent."""
        for message in self._sends:
            wait_for(message)
        assert not any(message.works for message in self._receives)

    def _post_next(self) -> None:
        if self._num_posted == len(self._expected):
            return
        message = self._expected[self._num_posted]
        self._num_posted += 1
        assert message.layout is not None
        rank, direction, tag = message.rank, message.direction, message.tag
        buffers, message.tensors = message.layout.allocate()
        for offset, buffer in enumerate(buffers):
            message.works.append(self._messenger.receive(buffer, rank, direction, tag + offset))
        if self._links:
            message.stamp = _stamp(0.0)
            message.works.append(
                self._messenger.receive(message.stamp, rank, direction, tag + STAMP_TAG)
            )


def wait_for(message: Message) -> None:
    """Returns when all that is under way has arrived."""
    if message.works:
        for work in message.works:
            work.wait()
        message.works = []


def _stamp(time_s: float) -> Tensor:
    """The time stamp of an emulated link; a memory ledger leaves it out: real links have none."""
    return torch.tensor([time_s], dtype=torch.float64)
