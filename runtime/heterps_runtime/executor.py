"""The executor: carries out one device's action list, literally and in its order.

Only `isend`, `irecv` and `all_reduce` are used. Receives are posted ahead in the order of the list,
no send keeps a device waiting, activations are freed by their backward pass, and gradients are
summed: over micro-batches by autograd, over owners by one all-reduce per bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_envs.actions import Action
from heterps_runtime import losses
from heterps_runtime.batches import Batch
from heterps_runtime.communication import Communicator
from heterps_runtime.emulation import Clock, EmulatedLinks
from heterps_runtime.messages import pack, unpacked
from heterps_runtime.owned_stages import OwnedStages
from heterps_runtime.recording import TensorSpec
from heterps_runtime.run_specification import EmulatedDevice, RunSpecification

# Receives posted ahead of the one that is waited for. Few, because their buffers take memory.
POSTED_AHEAD = 4
# Buffers of one message (one for each dtype), and the time stamp of an emulated link.
TAGS_PER_MESSAGE = 16
STAMP_TAG = TAGS_PER_MESSAGE - 1

Key = tuple[str, int]  # stage, micro-batch


class ActionRecord(NamedTuple):
    """What one action took; times in seconds from the start of the step."""

    kind: str
    stage: str
    micro_batch: int
    start_s: float
    end_s: float


@dataclass
class _Posted:
    """A message that has been asked for."""

    tensors: list[Tensor | None]
    stamp: Tensor | None
    works: list[dist.Work] = field(default_factory=list)


class Executor:
    """One device's part of a step under one plan.

    Args:
        specification: The run.
        device: This rank's device.
        owned: Its stages.
        communicator: The processes.
        clock: The device's time.
    """

    def __init__(
        self,
        specification: RunSpecification,
        device: str,
        owned: OwnedStages,
        communicator: Communicator,
        clock: Clock,
    ) -> None:
        plan = specification.plan
        self._specification, self._device, self._owned = specification, device, owned
        self._communicator, self._clock = communicator, clock
        assert specification.profile.source is not None
        self._source = specification.profile.source
        self._actions = specification.actions.get(device, ())
        self._receives = [action for action in self._actions if action.kind == "receive"]
        self._stage_index = {stage.name: index for index, stage in enumerate(plan.stages)}
        self._front, self._back = _neighbours(specification)
        self._micro_batch_sizes = plan.job.micro_batch_sizes
        emulation = specification.emulation
        self._emulated = specification.emulated_device(device) or EmulatedDevice(
            device=device, forward_s={}, backward_s={}, optimizer_s=0.0
        )
        self._links = EmulatedLinks(device, emulation.links) if emulation else None
        self._reduce_s = emulation.reduce_s if emulation else (0.0,) * len(specification.buckets)
        self._handlers: dict[str, Callable[[Action], None]] = {
            "receive": self._receive,
            "forward": self._forward,
            "backward": self._backward,
            "send": self._send,
            "reduce": self._reduce,
            "step": self._step,
        }
        self._start_step()

    @property
    def micro_batches(self) -> set[int]:
        """The micro-batches that this device computes."""
        return {action.micro_batch for action in self._actions if action.kind == "forward"}

    def _start_step(self) -> None:
        self._num_posted = 0
        self._posted: dict[tuple[str, int, str], _Posted] = {}
        self._activations: dict[Key, tuple[Tensor, ...]] = {}
        self._gradients: dict[Key, tuple[Tensor | None, ...]] = {}
        self._saved: dict[Key, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        self._outgoing: dict[tuple[str, int, str], Sequence[Tensor | None]] = {}
        self._sends: dict[tuple[str, int, str], list[tuple[dist.Work, Tensor]]] = {}
        self._records: list[ActionRecord] = []
        self._loss = 0.0

    def step(
        self, batches: Mapping[int, Batch], start_s: float, slowdown: float = 1.0
    ) -> tuple[float, list[ActionRecord]]:
        """Executes the action list once.

        Args:
            batches: Inputs and target of every micro-batch that this device computes.
            start_s: When the step began (`time.perf_counter`).
            slowdown: Injected slowdown of an emulated device.

        Returns:
            This device's share of the loss, and what every action took.
        """
        self._start_step()
        self._start_s, self._batches, self._slowdown = start_s, batches, slowdown
        self._clock.start_step(start_s)
        for _ in range(POSTED_AHEAD):
            self._post_next()
        for action in self._actions:
            self._handlers[action.kind](action)
        for key in list(self._sends):
            self._wait_for_send(key)
        assert not self._saved
        assert not self._posted
        return self._loss, self._records

    # -- messages

    def _post_next(self) -> None:
        if self._num_posted == len(self._receives):
            return
        action = self._receives[self._num_posted]
        self._num_posted += 1
        source = self._specification.ranks[action.peer]
        group, tag = self._communicator.directions[action.direction], self._tag(action)
        is_gradient = action.direction == "backward"
        specs = self._specs(action)
        buffers, tensors = unpacked(
            [None if is_gradient and not spec.requires_grad else spec for spec in specs]
        )
        posted = _Posted(tensors, None)
        for offset, buffer in enumerate(buffers):
            posted.works.append(_work(dist.irecv(buffer, source, group=group, tag=tag + offset)))
        if self._links:
            posted.stamp = torch.zeros(1, dtype=torch.float64)
            stamp_tag = tag + STAMP_TAG
            posted.works.append(_work(dist.irecv(posted.stamp, source, group=group, tag=stamp_tag)))
        self._posted[action.stage, action.micro_batch, action.direction] = posted

    def _receive(self, action: Action) -> None:
        began_s = self._clock.now_s
        posted = self._posted.pop((action.stage, action.micro_batch, action.direction))
        for work in posted.works:
            work.wait()
        if posted.stamp is not None:
            self._clock.wait_until(float(posted.stamp))
        key = action.stage, action.micro_batch
        if action.direction == "forward":
            specs = self._specs(action)
            self._activations[key] = tuple(
                tensor.requires_grad_(spec.requires_grad)
                for tensor, spec in zip(posted.tensors, specs, strict=True)
                if tensor is not None
            )
        else:
            self._gradients[key] = tuple(posted.tensors)
        self._post_next()
        self._record(action, began_s, self._clock.now_s)

    def _send(self, action: Action) -> None:
        tensors = self._outgoing.pop((action.stage, action.micro_batch, action.direction))
        departure_s = self._clock.now_s
        buffers = dict(enumerate(pack(tensors)))
        if self._links:
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in buffers.values())
            arrival_s = self._links.arrival_s(action.peer, num_bytes, departure_s)
            buffers[STAMP_TAG] = torch.tensor([arrival_s], dtype=torch.float64)
        destination = self._specification.ranks[action.peer]
        group, tag = self._communicator.directions[action.direction], self._tag(action)
        self._sends[action.stage, action.micro_batch, action.direction] = [
            (_work(dist.isend(tensor, destination, group=group, tag=tag + offset)), tensor)
            for offset, tensor in buffers.items()
        ]
        self._record(action, departure_s, departure_s)

    def _wait_for_send(self, key: tuple[str, int, str]) -> None:
        for work, _ in self._sends.pop(key, []):
            work.wait()

    def _tag(self, action: Action) -> int:
        """Unique for a message of one direction: micro-batch and the stage in front of the cut."""
        stage = action.stage
        is_front = (action.kind == "send") == (action.direction == "forward")
        front = stage if is_front else self._front[stage, action.micro_batch]
        assert front is not None
        message = action.micro_batch * len(self._stage_index) + self._stage_index[front]
        return message * TAGS_PER_MESSAGE

    def _specs(self, action: Action) -> Sequence[TensorSpec]:
        """The tensors of a message that this stage receives."""
        size = self._micro_batch_sizes[action.micro_batch]
        received, sent = self._owned.modules[action.stage].specs(size)
        return received if action.direction == "forward" else sent

    # -- compute

    def _forward(self, action: Action) -> None:
        key = action.stage, action.micro_batch
        inputs, target = self._batches[action.micro_batch]
        self._clock.begin()
        received = self._activations.pop(key, ())
        outputs = self._owned.modules[action.stage](inputs, received)
        following = self._back[key]
        if following is None:
            loss = losses.loss_sum(self._source, outputs[0], target)
            loss = loss / self._specification.plan.job.global_batch_size
            self._loss += float(loss.detach())
            outputs = (loss,)
        self._saved[key] = received, outputs
        self._finish(action, self._emulated.forward_s)
        if following is not None:
            detached = [tensor.detach() for tensor in outputs]
            if following in self._owned.modules:
                self._activations[following, action.micro_batch] = tuple(
                    tensor.requires_grad_(output.requires_grad)
                    for tensor, output in zip(detached, outputs, strict=True)
                )
            else:
                self._outgoing[*key, "forward"] = detached

    def _backward(self, action: Action) -> None:
        key = action.stage, action.micro_batch
        # The gradient came back, so the activations have arrived: their buffer can go.
        self._wait_for_send((*key, "forward"))
        received, outputs = self._saved.pop(key)
        self._clock.begin()
        if self._back[key] is None:
            torch.autograd.backward(outputs)
        else:
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, self._gradients.pop(key), strict=True)
                if output.requires_grad and gradient is not None
            ]
            torch.autograd.backward([p[0] for p in pairs], [p[1] for p in pairs])
        self._finish(action, self._emulated.backward_s)
        preceding = self._front[key]
        if preceding is None:
            return
        gradients = [_gradient(tensor) for tensor in received]
        if preceding in self._owned.modules:
            self._gradients[preceding, action.micro_batch] = tuple(gradients)
        else:
            self._outgoing[*key, "backward"] = gradients

    def _reduce(self, action: Action) -> None:
        began_s = self._clock.now_s
        devices = self._specification.buckets[action.bucket].devices
        ranks = tuple(sorted(self._specification.ranks[device] for device in devices))
        self._meet(ranks)
        self._clock.begin()
        self._owned.reduce_bucket(action.bucket)
        end_s = self._clock.finish(self._reduce_s[action.bucket]).end_s
        self._record(action, began_s, end_s)

    def _meet(self, ranks: tuple[int, ...]) -> None:
        """An emulated all-reduce begins when the last of its devices is there."""
        if self._links:
            own = torch.tensor([self._clock.now_s], dtype=torch.float64)
            group = self._communicator.groups([ranks])[ranks]
            dist.all_reduce(own, dist.ReduceOp.MAX, group=group)
            self._clock.wait_until(float(own))

    def _step(self, action: Action) -> None:
        self._clock.begin()
        self._owned.update()
        span = self._clock.finish(self._emulated.optimizer_s * self._slowdown)
        self._record(action, span.start_s, span.end_s)

    def _finish(self, action: Action, targets_s: Mapping[str, tuple[float, ...]]) -> None:
        target_s = targets_s[action.stage][action.micro_batch] if targets_s else 0.0
        span = self._clock.finish(target_s * self._slowdown)
        self._record(action, span.start_s, span.end_s)

    def _record(self, action: Action, start_s: float, end_s: float) -> None:
        self._records.append(
            ActionRecord(
                action.kind,
                action.stage,
                action.micro_batch,
                start_s - self._start_s,
                end_s - self._start_s,
            )
        )


Neighbours = dict[Key, str | None]


def _neighbours(specification: RunSpecification) -> tuple[Neighbours, Neighbours]:
    """The stage in front of each stage on a micro-batch's route, and the one behind it."""
    front: Neighbours = {}
    back: Neighbours = {}
    for pipeline in specification.plan.pipelines:
        names = pipeline.stages
        for micro_batch in pipeline.micro_batches:
            for name, before, after in zip(
                names, (None, *names[:-1]), (*names[1:], None), strict=True
            ):
                front[name, micro_batch], back[name, micro_batch] = before, after
    return front, back


def _gradient(tensor: Tensor) -> Tensor | None:
    """What goes back over the cut: a tensor that no output depends on has a gradient of zeros."""
    if not tensor.requires_grad:
        return None
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None, "a rank sends to itself"
    return work
