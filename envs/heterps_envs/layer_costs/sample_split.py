"""Layers whose samples a group splits: what of them each device computes, and the sums it takes.

Each device holds all of such a layer and computes it for its samples. Samples stay apart from one
such layer to the next one behind it; what enters and leaves a run of them is whole on all devices.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from heterps_configs.documents.base import BYTES_PER_ELEMENT, compute_format
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats


def layers_by_batch(
    profile: ModelProfile, batch_layers: Collection[int], gradient_bytes: Floats, job: Job
) -> dict[int, LayerProfile]:
    """These layers, with samples as what a group splits of them.

    In the forward pass what the last layer of a run returns is put together; in the backward pass
    so are the gradients of what the first one takes, and the gradients of all their parameters are
    summed for each micro-batch. Each is an all-reduce. A group of more devices than a micro-batch
    has samples computes the layer whole, on each of them.

    Args:
        profile: Of the whole layers.
        batch_layers: Of one stage.
        gradient_bytes: (L,) of all parameters of a layer.
        job: Its micro-batch size and dtype.
    """
    # Sums are counted in bytes of a sample, in the profile's format.
    of_sample = profile.activation_scale(job.dtype) * job.micro_batch_size
    found = {}
    for index in batch_layers:
        layer, parameters = profile.layers[index], float(gradient_bytes[index]) / of_sample
        is_entered = index > 0 and index - 1 not in batch_layers
        entering = profile.layers[index - 1].output_bytes if is_entered else 0.0
        leaving = 0.0 if index + 1 in batch_layers else _returned_bytes(profile, index, job)
        split = TensorSplit(
            unit="samples",
            num_units=job.micro_batch_size,
            forward_flops=layer.forward_flops,
            backward_flops=layer.backward_flops,
            activation_bytes=layer.activation_bytes,
            attention_matrix_bytes=layer.attention_matrix_bytes,
            memory_traffic_bytes=layer.memory_traffic_bytes,
            deferred_bytes=layer.deferred_bytes or 0,
            forward_sums=(leaving,) if leaving else (),
            backward_sums=tuple(each for each in (parameters, entering) if each),
        )
        # Copies of the parameters are made for each micro-batch, and kept with what it keeps.
        copies = (layer.cast_bytes or 0.0) / of_sample
        found[index] = layer.changed(
            tensor_split=split,
            activation_bytes=layer.activation_bytes + copies,
            cast_bytes=None if layer.cast_bytes is None else 0.0,
        )
    return found


def _returned_bytes(profile: ModelProfile, index: int, job: Job) -> float:
    """Of a sample, in the profile's format; of the last layer what the loss compares."""
    if index + 1 < profile.num_layers:
        return profile.layers[index].output_bytes
    target = profile.source.target if profile.source else None
    if target is None:
        return 0.0
    numbers = math.prod(target.shape) * (target.num_classes or 1)
    num_bytes = numbers * BYTES_PER_ELEMENT[compute_format(job.dtype)]
    return num_bytes / profile.activation_scale(job.dtype)
