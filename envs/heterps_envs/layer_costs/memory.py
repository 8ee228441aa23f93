"""Bytes that each layer of a model keeps on each device type, as measured or traced.

Without a measurement all grows in proportion to the micro-batch; with several it is linear between
the measured sizes and beyond them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.backward_peaks import backward_peaks
from heterps_envs.layer_costs.kept_memory import LayerMemory
from heterps_envs.layer_costs.samples import measurements_of

# Bytes of one number of a model's inputs.
_INPUT_BYTES = {
    "int64": 8, "int32": 4, "uint8": 1, "bool": 1, "float32": 4, "bfloat16": 2, "float16": 2,
}  # fmt: skip

_Field = Literal["activation_bytes", "shared_bytes", "peak_bytes"]


def layer_memory(profile: ModelProfile, types: Sequence[DeviceType], job: Job) -> LayerMemory:
    """Bytes of one micro-batch of `job.micro_batch_size` samples for each layer and device type.

    A measurement of the type wins (of its host, where it is emulated), then the traced bytes.
    """
    layers = profile.layers
    scale = profile.activation_scale(job.dtype) * job.micro_batch_size
    out = np.array([layer.output_bytes for layer in layers]) * scale
    out[-1] = 0.0
    into = np.concatenate([[0.0], out[:-1]])
    traced = np.array([layer.activation_bytes for layer in layers]) * scale
    saved_in, saved_out = _saved_at_cuts(profile, traced, scale)
    saved_in, saved_out = np.minimum(saved_in, into), np.minimum(saved_out, out)
    inputs = _input_bytes(profile) * job.micro_batch_size
    again = np.maximum(saved_in - np.concatenate([[0.0], saved_out[:-1]]), 0.0)
    own = traced - again - saved_out
    own[0] -= inputs  # the first layer saves what it reads, which is no activation
    constants = np.array([layer.constant_bytes for layer in layers])
    own += constants * profile.activation_scale(job.dtype)
    columns = [_column(profile, entry, job, own, saved_in + saved_out) for entry in types]
    return LayerMemory(
        own_bytes=np.stack([column.own_bytes for column in columns], axis=1),
        shared_bytes=np.stack([column.shared_bytes for column in columns], axis=1),
        in_bytes=into,
        out_bytes=out,
        saved_in_bytes=saved_in,
        saved_out_bytes=saved_out,
        workspace_bytes=np.stack([column.workspace_bytes for column in columns], axis=1),
        deferred_bytes=scale
        * np.array([np.nan if x.deferred_bytes is None else x.deferred_bytes for x in layers]),
        packed_bytes=np.where(_num_sent(profile) > 1, out, 0.0),
        passing=_passing(profile, scale),
        input_bytes=inputs,
        backward_peaks=backward_peaks(profile, types, job),
    )


class _Column(NamedTuple):
    """(L,) bytes on one device type."""

    own_bytes: Floats
    shared_bytes: Floats
    workspace_bytes: Floats


def _column(
    profile: ModelProfile, entry: DeviceType, job: Job, traced_own: Floats, at_cuts: Floats
) -> _Column:
    zeros = np.zeros(profile.num_layers)
    alone = _measured(profile, entry, job, "activation_bytes")
    shared = _measured(profile, entry, job, "shared_bytes")
    # Of an emulated GPU the kernels are those of its host.
    is_gpu = entry.kind == "gpu" and entry.emulation is None
    if not is_gpu:
        matrices = np.array([layer.attention_matrix_bytes for layer in profile.layers])
        traced_own = traced_own + matrices * job.micro_batch_size
    # Only on a GPU does workspace come out of the memory that the limit is for: on a CPU it is the
    # host's, and limits of emulated devices leave it out as well.
    workspace = _measured(profile, entry, job, "peak_bytes") if is_gpu else None
    if shared is None:
        scale = profile.activation_scale(job.dtype)
        shared = np.array([layer.shared_bytes for layer in profile.layers]) * scale
    return _Column(
        np.maximum(traced_own if alone is None else alone - at_cuts, 0.0),
        shared,
        zeros if workspace is None else workspace,
    )


def _saved_at_cuts(profile: ModelProfile, traced: Floats, scale: float) -> tuple[Floats, Floats]:
    """(L,), (L,) of what crosses the cuts of each layer, the bytes that it keeps itself.

    Where the trace does not say it, a layer keeps what it reads, and not what it returns.
    """
    layers = profile.layers
    saved_in = [
        traced[index] if layer.saved_input_bytes is None else layer.saved_input_bytes * scale
        for index, layer in enumerate(layers)
    ]
    saved_out = [(layer.saved_output_bytes or 0.0) * scale for layer in layers]
    return np.array(saved_in), np.array(saved_out)


def _num_sent(profile: ModelProfile) -> NDArray[np.int64]:
    """(L,) tensors that cross the cut behind each layer; 0 where it is not known."""
    change = [0] * (profile.num_layers + 1)
    for index, layer in enumerate(profile.layers):
        for num_cuts, _ in layer.sent:
            change[index] += 1
            change[min(index + num_cuts, profile.num_layers)] -= 1
    return np.cumsum(change[:-1], dtype=np.int64)


def _passing(profile: ModelProfile, scale: float) -> Floats:
    """`LayerMemory.passing`, (3, N)."""
    found = [
        (index, index + num_cuts - 1, num_bytes * scale)
        for index, layer in enumerate(profile.layers)
        for num_cuts, num_bytes in layer.sent
        if num_cuts > 1
    ]
    return np.array(found, dtype=float).reshape(-1, 3).T


def _input_bytes(profile: ModelProfile) -> float:
    """Bytes of one sample and its target."""
    source = profile.source
    if source is None:
        return 0.0
    entries = (*source.inputs, *((source.target,) if source.target else ()))
    return float(sum(prod(entry.shape) * _INPUT_BYTES[entry.dtype] for entry in entries))


def _measured(profile: ModelProfile, entry: DeviceType, job: Job, field: _Field) -> Floats | None:
    """(L,) bytes of one micro-batch of the job's size; None where nobody has measured them."""
    names = [entry.name, *([entry.emulation.host_device_type] if entry.emulation else ())]
    for name in names:
        found = {
            size: np.array(getattr(measurement, field))
            for size, measurement in measurements_of(profile, name, job).items()
            if getattr(measurement, field)
        }
        if found:
            return _at_micro_batch(found, job.micro_batch_size)
    return None


def _at_micro_batch(found: dict[int, Floats], wanted: int) -> Floats:
    """(L,) bytes at `wanted` samples: linear through the two nearest measured sizes."""
    sizes = sorted(found)
    if len(sizes) == 1:
        return found[sizes[0]] * (wanted / sizes[0])
    behind = min(max(int(np.searchsorted(sizes, wanted)), 1), len(sizes) - 1)
    low, high = sizes[behind - 1], sizes[behind]
    share = (wanted - low) / (high - low)
    return np.asarray(np.maximum(found[low] + share * (found[high] - found[low]), 0.0))
