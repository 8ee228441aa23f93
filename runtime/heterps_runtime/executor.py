"""The executor: carries out one device's action list, literally and in its order.

Only messages and sums are asked of the world outside (`heterps_runtime.messenger`). Receives are
posted ahead in the order of the list, no send keeps a device waiting, activations are freed by
their backward pass, and gradients are summed: over micro-batches by autograd, over owners by one
all-reduce per bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heterps_envs.memory_rule import POSTED_AHEAD
from heterps_runtime.batches import Batch
from heterps_runtime.deferred_gradients import DeferredGradients
from heterps_runtime.emulation import Clock, EmulatedLinks
from heterps_runtime.losses import Loss, SourceLoss
from heterps_runtime.messages import pack
from heterps_runtime.messenger import Messenger, Work
from heterps_runtime.owned_stages import OwnedStages
from heterps_runtime.program import (
    STAMP_TAG,
    Key,
    Message,
    MessageKey,
    Other,
    Pass,
    Step,
    build_program,
)
from heterps_runtime.run_specification import RunSpecification


class ActionRecord(NamedTuple):
    """What one action took; times in seconds from the start of the step."""

    kind: str
    stage: str
    micro_batch: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class _Posted:
    """A message that has been asked for."""

    tensors: list[Tensor | None]
    stamp: Tensor | None
    works: list[Work]


class Executor:
    """One device's part of a step under one plan.

    Args:
        specification: The run.
        device: This rank's device.
        owned: Its stages.
        messenger: Carries its messages.
        clock: The device's time.
        loss: By default the one that the model's source names.
        first_step: Number of the first step, which dropout depends on.

    Attributes:
        program: The device's actions, resolved.
    """

    def __init__(
        self,
        specification: RunSpecification,
        device: str,
        owned: OwnedStages,
        messenger: Messenger,
        clock: Clock,
        loss: Loss | None = None,
        first_step: int | None = None,
    ) -> None:
        self._owned, self._messenger, self._clock = owned, messenger, clock
        assert specification.profile.source is not None
        self._loss = loss or SourceLoss(specification.profile.source)
        self._seed_of_run = specification.seed
        self._step_number = specification.first_step if first_step is None else first_step
        self._global_batch_size = specification.plan.job.global_batch_size
        self.program = build_program(specification, device, owned.modules)
        self._receives = [
            step
            for step in self.program
            if isinstance(step, Message) and step.action.kind == "receive"
        ]
        emulation = specification.emulation
        emulated = specification.emulated_device(device)
        self._optimizer_s = emulated.optimizer_s if emulated else 0.0
        self._links = EmulatedLinks(device, emulation.links) if emulation else None
        self._reduce_s = emulation.reduce_s if emulation else (0.0,) * len(specification.buckets)
        handlers: dict[str, Callable[[Any], None]] = {
            "receive": self._receive,
            "forward": self._forward,
            "backward": self._backward,
            "backward-input": self._backward_input,
            "backward-weight": self._backward_weight,
            "send": self._send,
            "reduce": self._reduce,
            "step": self._step,
        }
        self._handled = [(handlers[step.action.kind], step) for step in self.program]
        self._deferred = DeferredGradients()
        self._seeds: dict[int, tuple[Tensor]] = {}
        self._start_step({}, 0.0, 1.0)

    @property
    def micro_batches(self) -> set[int]:
        """The micro-batches that this device computes."""
        return {step.key[1] for step in self.program if isinstance(step, Pass)}

    def step(
        self,
        batches: Mapping[int, Batch],
        start_s: float,
        slowdown: float = 1.0,
    ) -> tuple[float, list[ActionRecord]]:
        """Executes the action list once.

        Args:
            batches: Inputs and target of every micro-batch that this device computes.
            start_s: When the step began (`time.perf_counter`).
            slowdown: Injected slowdown of an emulated device.

        Returns:
            This device's share of the loss, and what every action took.
        """
        self.begin(batches, start_s, slowdown)
        for handle, step in self._handled:
            handle(step)
        return self.end()

    # -- a step, action by action

    def begin(self, batches: Mapping[int, Batch], start_s: float, slowdown: float = 1.0) -> None:
        """Posts the first receives."""
        self._start_step(batches, start_s, slowdown)
        self._clock.start_step(start_s)
        for _ in range(POSTED_AHEAD):
            self._post_next()

    def execute(self, index: int) -> None:
        """Carries out one action of the program; the actions before it have been."""
        handle, step = self._handled[index]
        handle(step)

    def is_ready(self, index: int) -> bool:
        """Whether an action can be carried out without waiting for a message."""
        step = self.program[index]
        if not isinstance(step, Message) or step.action.kind == "send":
            return True
        return all(work.is_completed() for work in self._posted[step.key].works)

    @property
    def records(self) -> list[ActionRecord]:
        """What the actions of the step have taken so far."""
        return self._records

    def held(self, key: Key) -> tuple[Tensor, ...]:
        """What a stage received and made of one micro-batch, until its backward pass."""
        received, made = self._saved[key]
        return received + made

    def gradients_to_hand_over(self) -> list[Tensor | None]:
        """Gradients that wait to be sent, or for another stage of this device."""
        own = [tensor for gradients in self._gradients.values() for tensor in gradients]
        return own + [
            tensor
            for key, tensors in self._outgoing.items()
            if key.direction == "backward"
            for tensor in tensors
        ]

    def end(self) -> tuple[float, list[ActionRecord]]:
        """Waits for what is still being sent; returns the loss and the records."""
        for key in list(self._sends):
            self._wait_for_send(key)
        assert not self._saved
        assert not self._posted
        assert not self._deferred
        self._step_number += 1
        return sum(float(loss) * share for loss, share in self._losses), self._records

    def _start_step(self, batches: Mapping[int, Batch], start_s: float, slowdown: float) -> None:
        self._batches, self._start_s, self._slowdown = batches, start_s, slowdown
        self._num_posted = 0
        self._posted: dict[MessageKey, _Posted] = {}
        self._activations: dict[Key, tuple[Tensor, ...]] = {}
        self._gradients: dict[Key, tuple[Tensor | None, ...]] = {}
        self._saved: dict[Key, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        self._outgoing: dict[MessageKey, Sequence[Tensor | None]] = {}
        self._sends: dict[MessageKey, list[tuple[Work, Tensor]]] = {}
        self._records: list[ActionRecord] = []
        self._losses: list[tuple[Tensor, float]] = []

    # -- messages

    def _post_next(self) -> None:
        if self._num_posted == len(self._receives):
            return
        message = self._receives[self._num_posted]
        self._num_posted += 1
        assert message.layout is not None
        rank, direction, tag = message.rank, message.key.direction, message.tag
        buffers, tensors = message.layout.allocate()
        works = []
        for offset, buffer in enumerate(buffers):
            works.append(self._messenger.receive(buffer, rank, direction, tag + offset))
        stamp = None
        if self._links:
            stamp = _stamp(0.0)
            works.append(self._messenger.receive(stamp, rank, direction, tag + STAMP_TAG))
        self._posted[message.key] = _Posted(tensors, stamp, works)

    def _receive(self, message: Message) -> None:
        began_s = self._clock.now_s
        posted = self._posted.pop(message.key)
        for work in posted.works:
            work.wait()
        if posted.stamp is not None:
            self._clock.wait_until(float(posted.stamp))
        key = message.key.stage, message.key.micro_batch
        if message.key.direction == "forward":
            self._activations[key] = tuple(
                tensor.requires_grad_(requires_grad)
                for tensor, requires_grad in zip(posted.tensors, message.requires_grad, strict=True)
                if tensor is not None
            )
        else:
            self._gradients[key] = tuple(posted.tensors)
        for sent in message.confirms:
            self._wait_for_send(sent)
        self._post_next()
        self._record(message, began_s, self._clock.now_s)

    def _send(self, message: Message) -> None:
        tensors = self._outgoing.pop(message.key)
        departure_s = self._clock.now_s
        rank, direction, tag = message.rank, message.key.direction, message.tag
        buffers = pack(tensors)
        works = [
            (self._messenger.send(buffer, rank, direction, tag + offset), buffer)
            for offset, buffer in enumerate(buffers)
        ]
        if self._links:
            num_bytes = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
            arrival_s = self._links.arrival_s(message.action.peer, num_bytes, departure_s)
            stamp = _stamp(arrival_s)
            works.append((self._messenger.send(stamp, rank, direction, tag + STAMP_TAG), stamp))
        self._sends[message.key] = works
        self._record(message, departure_s, departure_s)

    def _wait_for_send(self, key: MessageKey) -> None:
        for work, _ in self._sends.pop(key, ()):
            work.wait()

    # -- compute

    def _forward(self, step: Pass) -> None:
        key = step.key
        inputs, target = self._batches[key[1]]
        self._clock.begin()
        received = self._activations.pop(key, ())
        random_key = self._seed_of_run, self._step_number, key[1]
        outputs = step.module.forward(inputs, received, random_key)
        if step.behind is None:
            loss = self._loss.total(outputs[0], target)
            share = 1 / (self._loss.elements(target) * self._global_batch_size)
            self._losses.append((loss.detach(), share))
            outputs = (loss,)
        self._saved[key] = received, outputs
        self._finish(step)
        if step.behind is not None:
            detached = tuple(tensor.detach() for tensor in outputs)
            if step.behind_is_here:
                for tensor, output in zip(detached, outputs, strict=True):
                    tensor.requires_grad_(output.requires_grad)
                self._activations[step.behind, key[1]] = detached
            else:
                self._outgoing[step.sent] = detached

    def _backward(self, step: Pass) -> None:
        key = step.key
        # The gradient came back, so the activations have arrived: their buffer can go.
        self._wait_for_send(step.sent)
        received, outputs = self._saved.pop(key)
        self._clock.begin()
        if step.behind is None:
            if outputs[0].requires_grad:
                torch.autograd.backward(outputs, self._seed(outputs[0], key[1]))
        else:
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, self._gradients.pop(key), strict=True)
                if output.requires_grad and gradient is not None
            ]
            if pairs:  # none where all layers up to the cut are frozen
                torch.autograd.backward([p[0] for p in pairs], [p[1] for p in pairs])
        self._finish(step)
        if step.before is None:
            return
        gradients = tuple(_gradient(tensor) for tensor in received)
        if step.before_is_here:
            self._gradients[step.before, key[1]] = gradients
        else:
            self._outgoing[MessageKey(*key, "backward")] = gradients

    def _seed(self, loss: Tensor, micro_batch: int) -> tuple[Tensor]:
        """The gradient of a summed loss: what each of its elements weighs in the batch's mean."""
        elements = self._loss.elements(self._batches[micro_batch][1])
        if elements not in self._seeds:
            self._seeds[elements] = (torch.full_like(loss, 1 / elements / self._global_batch_size),)
        return self._seeds[elements]

    def _backward_input(self, step: Pass) -> None:
        """The gradients of what the stage received; those of its weights are put off."""
        with self._deferred.collecting(step.key):
            self._backward(step)

    def _backward_weight(self, step: Pass) -> None:
        self._clock.begin()
        self._deferred.compute(step.key)
        self._finish(step)

    def _reduce(self, step: Other) -> None:
        began_s = self._clock.now_s
        bucket = step.action.bucket
        ranks = self._owned.bucket_ranks(bucket)
        if self._links:
            # An emulated all-reduce begins when the last of its devices is there.
            self._clock.wait_until(self._messenger.latest_s(self._clock.now_s, ranks))
        self._clock.begin()
        self._owned.reduce_bucket(bucket, self._messenger)
        end_s = self._clock.finish(self._reduce_s[bucket]).end_s
        self._record(step, began_s, end_s)

    def _step(self, step: Other) -> None:
        self._clock.begin()
        self._owned.update(self._messenger)
        span = self._clock.finish(self._optimizer_s * self._slowdown)
        self._record(step, span.start_s, span.end_s)

    def _finish(self, step: Pass) -> None:
        span = self._clock.finish(step.target_s * self._slowdown)
        self._record(step, span.start_s, span.end_s)

    def _record(self, step: Step, start_s: float, end_s: float) -> None:
        action, zero_s = step.action, self._start_s
        self._records.append(
            ActionRecord(
                action.kind, action.stage, action.micro_batch, start_s - zero_s, end_s - zero_s
            )
        )


def _stamp(time_s: float) -> Tensor:
    """The time stamp of an emulated link; a memory ledger leaves it out: real links have none."""
    return torch.tensor([time_s], dtype=torch.float64)


def _gradient(tensor: Tensor) -> Tensor | None:
    """What goes back over the cut: a tensor that no output depends on has a gradient of zeros."""
    if not tensor.requires_grad:
        return None
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
