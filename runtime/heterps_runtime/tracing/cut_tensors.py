"""Tensors that cross cuts: how far each one goes, and what it takes."""

from __future__ import annotations

from math import prod

from heterps_runtime.models.layers import Layer
from heterps_runtime.models.recording import Recording


def sent_tensors(
    recording: Recording, layers: tuple[Layer, ...], index: int, batch_size: int
) -> tuple[tuple[int, float], ...]:
    """Of each tensor that a layer makes for others: cuts that it crosses, bytes of one sample.

    Args:
        recording: Of `batch_size` samples.
        layers: All layers of the model.
        index: Of the layer.
        batch_size: Samples.
    """
    found = []
    for source in layers[index].crossing:
        if source.call in layers[index].calls:
            spec = recording.spec(source)
            num_bytes = prod(spec.shape) * spec.dtype.itemsize
            num_cuts = sum(source in layer.crossing for layer in layers[index:])
            found.append((num_cuts, num_bytes / batch_size))
    return tuple(found)
