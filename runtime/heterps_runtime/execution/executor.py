"""The executor: carries out one device's action list, literally and in its order.

Only messages and sums are asked of the world outside (`heterps_runtime.transport.messenger`).
Receives are posted ahead in the order of the list, no send keeps a device waiting, activations are
freed by their backward pass, and gradients are summed: over micro-batches by autograd, over owners
by one all-reduce per bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from heterps_runtime.execution.action_records import ActionLabels, ActionRecord
from heterps_runtime.execution.device_messages import DeviceMessages, wait_for
from heterps_runtime.execution.emulation import Clock, EmulatedLinks, Span
from heterps_runtime.execution.loss_shares import LossShares
from heterps_runtime.execution.overlapped_sums import OverlappedSums
from heterps_runtime.execution.program import (
    Cell,
    Key,
    Message,
    Other,
    Pass,
    build_program,
)
from heterps_runtime.models.losses import Loss, SourceLoss
from heterps_runtime.models.mixed_precision import SharedCopies
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.backward import cut_gradient, run_backward
from heterps_runtime.stages.deferred_gradients import DeferredGradients
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.training.batches import Batch, Needs
from heterps_runtime.transport.messenger import Messenger

# Takes this device's share of the loss and its time, both complete but for the optimizer's step;
# returns the latest of the times of all devices. May raise: then nothing has been updated.
BeforeUpdate = Callable[[float, float], float]


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
        before_update: Called once in each step, when the gradients are complete; on a device
            without an optimizer step, at the end.

    Attributes:
        program: The device's actions, resolved.
        num_samples: Of the next step's batch, on all devices together; fewer than the job's where
            it is incomplete. Then the targets of its micro-batches are fewer than their inputs.
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
        before_update: BeforeUpdate | None = None,
    ) -> None:
        self._owned, self._messenger, self._clock = owned, messenger, clock
        assert specification.profile.source is not None
        self._loss = loss or SourceLoss(specification.profile.source)
        self._seed_of_run = specification.seed
        self._step_number = specification.first_step if first_step is None else first_step
        self.num_samples = specification.plan.job.global_batch_size
        # All devices of a group compute the loss, and the first one tells it.
        self._tells_loss = specification.position(device) == 0
        self._shares = LossShares(is_told=self._tells_loss)
        self._before_update = before_update
        self.program = build_program(specification, device, owned.modules)
        self._has_update = any(step.action.kind == "step" for step in self.program)
        passes = [step for step in self.program if isinstance(step, Pass)]
        self._cells: dict[Key, Cell] = {step.key: step.cell for step in passes}
        self._labels = ActionLabels([step.action for step in self.program])
        emulation = specification.emulation
        emulated = specification.emulated_device(device)
        self._optimizer_s = emulated.optimizer_s if emulated else 0.0
        self._links = EmulatedLinks.of(specification, device) if emulation else None
        self._messages = DeviceMessages(self.program, messenger, clock, self._links)
        without = [0.0] * len(specification.buckets)
        self._reduce_s = self._links.reduce_s if self._links else without
        self._is_sharded = [bucket.is_sharded for bucket in specification.buckets]
        handlers: dict[str, Callable[[Any], None]] = {
            "receive": self._receive,
            "forward": self._forward,
            "backward": self._backward,
            "backward-input": self._backward_input,
            "backward-weight": self._backward_weight,
            "send": self._send,
            "reduce": self._reduce,
            "step": self._step,
            "gather": self._gather,
        }
        self._sums: OverlappedSums | None = None
        if specification.overlaps_reduce:
            seconds = self._sum_s if self._links else None
            self._sums = OverlappedSums(owned, messenger, self.program, seconds)
        self._handled = [(handlers[step.action.kind], step) for step in self.program]
        self._copies = SharedCopies(specification.plan.job.dtype)
        self._num_micro_batches = specification.plan.job.num_micro_batches
        self._num_accumulated = 0  # micro-batches before this pass, see `AccumulatingExecutor`
        self._deferred = DeferredGradients()
        self._start_step({}, 0.0, 1.0)

    @property
    def micro_batches(self) -> set[int]:
        """The micro-batches that this device computes."""
        return {micro_batch for _, micro_batch in self._cells}

    @property
    def needs(self) -> Needs:
        """What it reads of the data."""
        passes = [step for step in self.program if isinstance(step, Pass)]
        return Needs(
            frozenset(self.micro_batches),
            frozenset(step.key[1] for step in passes if step.module.reads_inputs),
            frozenset(step.key[1] for step in passes if step.is_last),
        )

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
        if self._links:
            self._links.start_step(self._step_number)
        self._copies.hold()
        self._shares.scale = self._owned.begin_step(self._messenger)
        self._messages.begin()

    def execute(self, index: int) -> None:
        """Carries out one action of the program; the actions before it have been."""
        handle, step = self._handled[index]
        handle(step)

    @property
    def records(self) -> list[ActionRecord]:
        """What the actions of the step have taken so far."""
        return self._labels.records(self._times, self._start_s)

    def held(self, key: Key) -> tuple[Tensor, ...]:
        """What a stage received and made of one micro-batch, until its backward pass."""
        cell = self._cells[key]
        assert cell.outputs is not None
        return cell.received + cell.outputs

    def gradients_to_hand_over(self) -> list[Tensor | None]:
        """Gradients that wait to be sent, or for another stage of this device."""
        own = [tensor for cell in self._cells.values() for tensor in cell.gradients or ()]
        return own + self._messages.gradients_to_send()

    def end(self) -> tuple[float, list[ActionRecord]]:
        """Waits for what is still being sent; returns the loss and the records."""
        self._messages.finish()
        if not self._has_update and self._before_update is not None:
            self._before_update(self._shares.total(), self._clock.now_s)
        assert all(cell.outputs is None for cell in self._cells.values())
        assert not self._deferred
        self._step_number += 1
        return self._shares.total(), self.records

    def abandon(self) -> None:
        """Forgets a step that has failed, with the messages that are under way."""
        self._copies.release()
        self._start_step({}, 0.0, 1.0)

    @property
    def num_done(self) -> int:
        """Actions of the step that are done."""
        return len(self._times)

    def _start_step(self, batches: Mapping[int, Batch], start_s: float, slowdown: float) -> None:
        self._batches, self._start_s, self._slowdown = batches, start_s, slowdown
        self._last_pass = Span(start_s, start_s)
        # When each action began and ended; records are made of it at the end: nobody waits then.
        self._times: list[tuple[float, float]] = []
        self._shares.clear()

    # -- messages

    def _receive(self, message: Message) -> None:
        self._times.append(self._messages.receive(message))

    def _send(self, message: Message) -> None:
        self._times.append(self._messages.send(message))

    # -- compute

    def _forward(self, step: Pass) -> None:
        cell, micro_batch = step.cell, step.key[1]
        inputs, target = self._batches[micro_batch]
        self._clock.begin()
        random_key = self._seed_of_run, self._step_number, self._num_accumulated + micro_batch
        outputs = step.module.forward(inputs, cell.received, random_key)
        if step.is_last:
            # Of a group, each device has the logits of some classes.
            read_by = step.module.split_loss or self._loss
            loss, cell.seed = self._shares.take(read_by, outputs[0], target, self.num_samples)
            outputs = (loss,)
        cell.outputs = outputs
        self._finish(step)
        if step.behind is not None:
            step.behind.received = tuple(
                tensor.detach().requires_grad_(tensor.requires_grad) for tensor in outputs
            )
        for message in step.activations:
            message.tensors = [tensor.detach() for tensor in outputs]

    def _backward(self, step: Pass) -> None:
        cell = step.cell
        for message in step.activations:
            # The gradient came back, so the activations have arrived: their buffer can go.
            wait_for(message)
        received, outputs = cell.received, cell.outputs
        gradients = (cell.seed,) if step.is_last else cell.gradients
        assert outputs is not None
        assert gradients is not None
        cell.received, cell.outputs, cell.gradients, cell.seed = (), None, None, None
        self._clock.begin()
        if self._sums is not None and self._sums.has_sums_within(step):
            with self._sums.within(step):
                run_backward(outputs, gradients)
        else:
            run_backward(outputs, gradients)
        self._finish(step)
        if step.is_first:
            return
        gradients = tuple(map(cut_gradient, received))
        if step.before is not None:
            step.before.gradients = gradients
        for message in step.gradients:
            message.tensors = gradients

    def _backward_input(self, step: Pass) -> None:
        """The gradients of what the stage received; those of its weights are put off."""
        with self._deferred.collecting(step.key):
            self._backward(step)

    def _backward_weight(self, step: Pass) -> None:
        self._clock.begin()
        self._deferred.compute(step.key)
        self._finish(step)

    def _reduce(self, step: Other) -> None:
        if self._sums is not None:
            self._sums.start(step, len(self._times), self._last_pass)
            self._times.append(self._last_pass)  # until it is known
            return
        began_s, bucket = self._clock.now_s, step.action.bucket
        ranks = self._owned.bucket_ranks(bucket)
        if self._links:
            # An emulated all-reduce begins when the last of its devices is there.
            self._clock.wait_until(self._messenger.latest_s(self._clock.now_s, ranks))
        self._clock.begin()
        self._owned.reduce_bucket(bucket, self._messenger)
        self._times.append((began_s, self._clock.finish(self._sum_s(bucket)).end_s))

    def _gather(self, step: Other) -> None:
        """The parameters that other replicas have stepped."""
        began_s, bucket = self._clock.now_s, step.action.bucket
        if self._links:
            ranks = self._owned.bucket_ranks(bucket)
            self._clock.wait_until(self._messenger.latest_s(self._clock.now_s, ranks))
        self._clock.begin()
        self._owned.gather_bucket(bucket, self._messenger)
        self._times.append((began_s, self._clock.finish(self._sum_s(bucket)).end_s))

    def _sum_s(self, bucket: int) -> float:
        """Seconds of an emulated sum; where state is sharded, half goes to what is gathered."""
        return self._reduce_s[bucket] / (2 if self._is_sharded[bucket] else 1)

    def _step(self, step: Other) -> None:
        if self._sums is not None:
            for number, span in self._sums.finish(self._clock):
                self._times[number] = span
        self._copies.release()
        if self._owned.waits_for_norm and self._links:
            # An emulated device waits for the gradients of all others.
            latest_s = self._messenger.latest_s(self._clock.now_s, self._owned.ranks)
            self._clock.wait_until(latest_s)
        self._owned.complete_gradients(self._messenger)
        if self._before_update is not None:
            self._clock.wait_until(self._before_update(self._shares.total(), self._clock.now_s))
        self._clock.begin()
        self._owned.apply_gradients()
        self._times.append(self._clock.finish(self._optimizer_s * self._slowdown))

    def _finish(self, step: Pass) -> None:
        self._last_pass = self._clock.finish(step.target_s * self._slowdown)
        self._times.append(self._last_pass)
