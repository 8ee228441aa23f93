"""Synthetic batches in which every sample is a function of (seed, step, its index) alone.

Whole numbers are drawn more often near 0, so that a model can learn their frequencies and a loss
curve falls. Where the target has the shape and range of the last input, it is the next token.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps_configs.documents.model.source import InputSpecification, ModelSource
from heterps_configs.errors import HeterpsError


def make_batch(
    source: ModelSource, step: int, batch_size: int, seed: int, first_sample: int = 0
) -> tuple[dict[str, Tensor], Tensor]:
    """Samples `first_sample .. first_sample + batch_size - 1` of one step.

    Args:
        source: Shapes and value ranges.
        step: Number of the optimizer step.
        batch_size: How many samples.
        seed: Of the data.
        first_sample: Index of the first one; any rank can make any slice of the global batch.

    Returns:
        Inputs by name, (B, ...), and the target, (B, ...).

    Raises:
        HeterpsError: The source does not say what the target is.
    """
    if source.target is None:
        raise HeterpsError("the model's source has no target; it cannot be trained")
    samples = [
        _sample(source, source.target, np.random.default_rng((seed, step, index)))
        for index in range(first_sample, first_sample + batch_size)
    ]
    formats = [getattr(torch, entry.dtype) for entry in (*source.inputs, source.target)]
    columns = [
        torch.from_numpy(np.stack(column)).to(wanted)
        for column, wanted in zip(zip(*samples, strict=True), formats, strict=True)
    ]
    names = [entry.name for entry in source.inputs]
    return dict(zip(names, columns[:-1], strict=True)), columns[-1]


def _sample(
    source: ModelSource, target: InputSpecification, generator: np.random.Generator
) -> list[NDArray[np.generic]]:
    """The inputs of one sample in order, then its target."""
    *before, last = source.inputs
    arrays = [_draw(entry, entry.shape, generator) for entry in before]
    is_next_token = (
        last.is_whole
        and target.is_whole
        and last.num_classes == target.num_classes
        and last.shape == target.shape
        and len(last.shape) == 1
    )
    if is_next_token:
        tokens = _draw(last, (last.shape[0] + 1,), generator)
        return [*arrays, tokens[:-1], tokens[1:]]
    arrays += [_draw(last, last.shape, generator), _draw(target, target.shape, generator)]
    if source.loss == "ctc":  # letter 0 is none
        arrays[-1] = np.maximum(arrays[-1], 1)
    return arrays


def _draw(
    entry: InputSpecification, shape: tuple[int, ...], generator: np.random.Generator
) -> NDArray[np.generic]:
    if entry.is_whole:
        fraction = generator.random(shape) ** 2
        drawn = np.asarray(np.floor(fraction * (entry.num_classes or 2)), dtype=np.int64)
        return _with_placeholders(entry, drawn)
    if entry.num_classes == 2:
        return np.asarray(generator.random(shape) < 0.5, dtype=np.float32)
    return np.asarray(generator.standard_normal(shape), dtype=np.float32)


def _with_placeholders(entry: InputSpecification, drawn: NDArray[np.int64]) -> NDArray[np.int64]:
    """The front stands for another input; where one was drawn by chance, its neighbour stays."""
    if entry.placeholder is None:
        return drawn
    other = entry.placeholder - 1 if entry.placeholder else 1
    drawn[drawn == entry.placeholder] = other
    drawn[: entry.num_placeholders] = entry.placeholder
    return drawn
