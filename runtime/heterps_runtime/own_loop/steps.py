"""Steps of training on batches that a user's loop has made, whole on every rank."""

from __future__ import annotations

import time

from torch import Tensor

from heterps_configs.errors import HeterpsError
from heterps_runtime.own_loop.build import Built
from heterps_runtime.own_loop.micro_batches import (
    check_samples,
    checked_inputs,
    own_micro_batches,
)
from heterps_runtime.own_loop.model import Inputs
from heterps_runtime.own_loop.parts import Parts
from heterps_runtime.training.batches import Batch


def train(parts: Parts, inputs: Inputs, target: Tensor) -> float:
    """One optimizer step; the mean loss of all ranks."""
    return trained(parts, _cut(parts, inputs, target)[1])


def trained(parts: Parts, batches: dict[int, Batch]) -> float:
    """The same of this rank's micro-batches."""
    assert parts.built is not None, "there are micro-batches"
    with parts.failing_together():
        own, _ = parts.built.executor.step(batches, time.perf_counter())
        rows = parts.ranks.communicator.gather_numbers(own)
    parts.num_steps += 1
    return sum(row[0] for row in rows)


def accumulate(parts: Parts, inputs: Inputs, target: Tensor) -> float:
    """The same without the optimizer step."""
    built, batches = _cut(parts, inputs, target)
    with parts.failing_together():
        own = built.executor.accumulate(batches, time.perf_counter())
        rows = parts.ranks.communicator.gather_numbers(own)
    return sum(row[0] for row in rows)


def has_accumulated(parts: Parts) -> bool:
    """Whether there are gradients that no optimizer step has used yet."""
    return parts.built is not None and bool(parts.built.executor.num_batches)


def update(parts: Parts) -> None:
    """The optimizer step of what has been accumulated."""
    if parts.built is None or not has_accumulated(parts):
        raise HeterpsError("update: nothing has been accumulated; call accumulate before")
    with parts.failing_together():
        parts.built.executor.update()
    parts.num_steps += 1


def _cut(parts: Parts, inputs: Inputs, target: Tensor) -> tuple[Built, dict[int, Batch]]:
    """This rank's micro-batches of a batch; builds its stages the first time."""
    job, ranks = parts.plan.job, parts.ranks
    named = ranks.together(lambda: checked_inputs(inputs, target, job.global_batch_size))
    is_new = parts.built is None
    built = parts.of_batch(inputs, target)
    batches = own_micro_batches(
        named,
        target,
        job.micro_batch_sizes,
        built.executor.micro_batches,
        ranks.communicator.device,
    )
    if is_new:
        is_last = any(module.is_last for module in built.owned.modules.values())
        check_samples(batches, ranks, parts.plan.devices, with_target=is_last)
    return built, batches
