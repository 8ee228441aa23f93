"""Gradient accumulation beyond a plan's batch: several of its batches for one optimizer step.

Micro-batches already are accumulation: a plan's global batch is what one optimizer step takes, and
only some of its micro-batches are in flight. This is for batches that come in parts, from loaders
that cannot hold more.
"""

from __future__ import annotations

from collections.abc import Mapping

from heterps_runtime.execution.evaluation import EvaluatingExecutor
from heterps_runtime.training.batches import Batch


class AccumulatingExecutor(EvaluatingExecutor):
    """An executor whose gradients may be of several batches.

    Attributes:
        num_batches: How many batches the gradients are of that wait for `update`.
    """

    num_batches = 0

    def accumulate(self, batches: Mapping[int, Batch], start_s: float) -> float:
        """All passes of a step, without sums over ranks and without an update: gradients add up.

        Dropout draws what it draws for one larger batch.

        Args:
            batches: Inputs and target of every micro-batch that this device computes.
            start_s: When the step began (`time.perf_counter`).

        Returns:
            This device's share of the loss.
        """
        sums, self._sums = self._sums, None
        self.begin(batches, start_s)
        for handle, step in self._handled:
            if step.action.kind in ("reduce", "step", "gather"):
                self._times.append((self._clock.now_s, self._clock.now_s))
            else:
                handle(step)
        loss, _ = self.end()
        self._sums = sums
        self._step_number -= 1  # it is the same step still
        self.num_batches += 1
        self._num_accumulated = self.num_batches * self._num_micro_batches
        return loss

    def update(self) -> None:
        """The optimizer step of the mean gradient of all accumulated batches."""
        self._copies.release()
        self._owned.start_all_sums(self._messenger)
        self._owned.complete_gradients(self._messenger, num_batches=self.num_batches)
        self._owned.apply_gradients()
        for step in self.program:
            if step.action.kind == "gather":
                self._owned.gather_bucket(step.action.bucket, self._messenger)
        self._step_number += 1
        self.num_batches = self._num_accumulated = 0
