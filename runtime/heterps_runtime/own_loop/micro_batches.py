"""A rank's micro-batches of a batch that every rank has whole."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from heterps_configs.errors import HeterpsError
from heterps_runtime.own_loop.checks import check_same_samples, digests
from heterps_runtime.own_loop.model import Inputs, named_inputs
from heterps_runtime.own_loop.ranks import Ranks
from heterps_runtime.training.batches import Batch


def checked_inputs(inputs: Inputs, target: Tensor, batch_size: int) -> dict[str, Tensor]:
    """The inputs of a batch by name.

    Args:
        inputs: Of the whole batch.
        target: Of the whole batch.
        batch_size: Samples that the plan's job takes.

    Raises:
        HeterpsError: They are no tensors, or of another number of samples.
    """
    named = named_inputs(inputs)
    for name, tensor in {**named, "target": target}.items():
        if len(tensor) != batch_size:
            raise HeterpsError(
                f"batch: {name} has {len(tensor)} samples; the plan's job has "
                f"global_batch_size {batch_size}"
            )
    return named


def own_micro_batches(
    named: Mapping[str, Tensor],
    target: Tensor,
    sizes: Sequence[int],
    wanted: Collection[int],
    device: torch.device,
) -> dict[int, Batch]:
    """Inputs and target of the micro-batches that a rank computes.

    Args:
        named: Inputs of the whole batch, by name.
        target: Of the whole batch.
        sizes: Samples of each micro-batch, in their order in the batch.
        wanted: Numbers of those that the rank computes.
        device: Where it does.
    """
    start, batches = 0, {}
    for index, size in enumerate(sizes):
        if index in wanted:
            part = slice(start, start + size)
            parts = {name: tensor[part].to(device) for name, tensor in named.items()}
            batches[index] = parts, target[part].to(device)
        start += size
    return batches


def check_samples(
    batches: Mapping[int, Batch], ranks: Ranks, devices: Sequence[str], *, with_target: bool
) -> None:
    """Refuses a batch that is another one on another rank.

    Args:
        batches: This rank's micro-batches.
        ranks: Those that compare.
        devices: Their names, by rank.
        with_target: Whether this rank reads the target.

    Raises:
        HeterpsError: On every rank, where two that compute the same micro-batch have unlike ones.
    """
    own = ranks.together(lambda: digests(batches, with_target=with_target))
    with ranks.failures.shared():
        rows = ranks.communicator.gather(own, list[list[int]])
    check_same_samples(rows, devices)
