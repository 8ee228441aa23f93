"""What one device of a tensor-parallel group holds and computes, and the sums over the group.

Of what a layer can split (`TensorSplit`), every device of a group of d takes one part in d; the
rest of the layer is on each of them. What crosses cuts is whole on all of them. A layer that cannot
be split, or has fewer units than there are devices, stays as it is. Where d does not divide a
number of units, a run deals them out by largest remainder: some devices have one more than others,
which is not counted here.
"""

from __future__ import annotations

import numpy as np

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import LayerProfile, ModelProfile, TensorSplit
from heterps_envs.arrays import Floats


def split_profile(profile: ModelProfile, degree: int) -> ModelProfile:
    """The layers as one device of a group of `degree` has them.

    Its measurements are those that were taken at that degree; as they are of such a device, they
    count as measurements of these layers.
    """
    if degree == 1:
        return profile
    return profile.changed(
        layers=tuple(_split_layer(layer, degree) for layer in profile.layers),
        measurements=tuple(
            entry.changed(tensor_parallel=1)
            for entry in profile.measurements
            if entry.tensor_parallel == degree
        ),
    )


def sum_seconds(
    profile: ModelProfile, job: Job, degree: int, link: Link, measured: Link | None = None
) -> tuple[Floats, Floats]:
    """(L,), (L,) seconds of a micro-batch's sums over a group, in the forward and backward pass.

    Each takes what an all-reduce over so many devices was measured to take; where it was not, it is
    a ring: 2 (d - 1) messages of one part in d.

    Args:
        profile: Of the whole layers.
        job: Its micro-batch size and dtype.
        degree: Devices of the group.
        link: Between two of them.
        measured: An all-reduce over the group, by the bytes of its tensor.
    """
    scale = profile.activation_scale(job.dtype) * job.micro_batch_size
    splits = [split_at(layer, degree) for layer in profile.layers]

    def seconds(sums: list[tuple[float, ...]]) -> Floats:
        counts = np.array([len(each) for each in sums], float)
        num_bytes = np.array([sum(each) for each in sums]) * scale
        if measured is not None:
            whole_s = num_bytes / measured.bandwidth_bytes_per_s
            return np.asarray(counts * measured.latency_s + whole_s)
        return np.asarray(
            2
            * (degree - 1)
            * (counts * link.latency_s + num_bytes / degree / link.bandwidth_bytes_per_s)
        )

    return (
        seconds([split.forward_sums if split else () for split in splits]),
        seconds([split.backward_sums if split else () for split in splits]),
    )


def split_at(layer: LayerProfile, degree: int) -> TensorSplit | None:
    """What a group of `degree` splits of a layer; None when all of it is on each device."""
    split = layer.tensor_split
    if degree == 1 or split is None or split.num_units < degree:
        return None
    return split


def _split_layer(layer: LayerProfile, degree: int) -> LayerProfile:
    split = split_at(layer, degree)
    if split is None:
        return layer.changed(tensor_split=None)

    def part(whole: float, divided: float) -> float:
        return whole - divided + divided / degree

    def parameters(whole: int, divided: int) -> int:
        return whole - divided + -(-divided // degree)

    share = split.parameters / layer.num_parameters if layer.num_parameters else 0.0
    return layer.changed(
        num_parameters=parameters(layer.num_parameters, split.parameters),
        sparse_parameters=parameters(layer.sparse_parameters, split.sparse_parameters),
        tied_parameters=parameters(layer.tied_parameters, split.tied_parameters),
        forward_flops=part(layer.forward_flops, split.forward_flops),
        backward_flops=part(layer.backward_flops, split.backward_flops),
        activation_bytes=part(layer.activation_bytes, split.activation_bytes),
        memory_traffic_bytes=part(layer.memory_traffic_bytes, split.memory_traffic_bytes),
        shared_bytes=part(layer.shared_bytes, split.shared_bytes),
        deferred_bytes=None
        if layer.deferred_bytes is None
        else part(layer.deferred_bytes, split.deferred_bytes),
        cast_bytes=None
        if layer.cast_bytes is None
        else part(layer.cast_bytes, share * layer.cast_bytes),
        parameter_sizes=_split_sizes(layer.parameter_sizes, split.parameters, degree),
        tensor_split=None,
    )


def _split_sizes(sizes: tuple[int, ...], divided: int, degree: int) -> tuple[int, ...]:
    """Sizes of the parameters that a device holds; empty when it is not clear which are split.

    Those are the largest ones: matrices, not what norms scale by.
    """
    found, rest = [], divided
    for size in sizes:
        is_split = size <= rest
        rest -= size if is_split else 0
        found.append(-(-size // degree) if is_split else size)
    return tuple(sorted(found, reverse=True)) if rest == 0 else ()
