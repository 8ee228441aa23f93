"""Batch normalisation in a pipeline: what it normalises by, and whose its running statistics are.

- A micro-batch is normalised by its own mean and variance, as in training in one process with the
  same micro-batches (gradient accumulation). So what is learned depends on the sizes of the
  micro-batches, and not on the plan, the schedule or which layers are computed again.
- Running statistics, which only evaluation uses, are updated once for each micro-batch, in the
  order in which the stage computes them. A stage of which there are replicas has as many of them,
  each of its own micro-batches alone; nothing averages them. Checkpoints, and a move to another
  plan, take those of the replica with the smallest rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from heterps_runtime.transport.communication import Communicator

REMARK = (
    "batch normalisation uses the statistics of each micro-batch, not of the batch; each replica "
    "of a stage keeps running statistics of its own micro-batches"
)


def normalisations(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """The parts of a module that normalise over a batch."""
    return [p for p in module.modules() if isinstance(p, nn.modules.batchnorm._BatchNorm)]


def remarks(communicator: Communicator, *, has_any: bool) -> list[str]:
    """What a user should know of it, where any rank's stages have it; all ranks ask together.

    Args:
        communicator: The processes.
        has_any: Whether this rank's stages have it.
    """
    rows = communicator.gather_numbers(float(has_any))
    return [REMARK] if any(row[0] for row in rows) else []


@contextmanager
def unchanged_running_statistics(
    parts: Iterable[nn.modules.batchnorm._BatchNorm],
) -> Iterator[None]:
    """A second pass over the same samples: it updates copies.

    To switch the statistics off would save other tensors than the first pass, which a checkpoint
    refuses.
    """
    kept = [(part, dict(part._buffers)) for part in parts]
    for part, buffers in kept:
        copies = {name: None if b is None else b.clone() for name, b in buffers.items()}
        part._buffers.update(copies)
    try:
        yield
    finally:
        for part, buffers in kept:
            part._buffers.update(buffers)
