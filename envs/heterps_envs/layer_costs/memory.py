"""Bytes that layers keep from the forward to the backward pass, and how they add up in a stage.

A stage keeps, of one micro-batch, what its layers save beside the tensors that cross cuts, what
came in over its front cut, and what goes out over its back cut; of a cut between two of its layers
it keeps what either side saves. So a tensor counts once, whoever keeps it:

    kept(a .. b) = in[a] + sum over a..b of own[l] + sum over inner cuts of saved[c] + out[b]
                   + max over a..b of shared[l]
    saved[c]     = max(saved by the layer in front, saved by the layer behind)

Received tensors stay until the backward pass because their gradients go back; outputs stay because
the backward pass begins at them. A layer that is computed again keeps no `own` bytes, but all that
enters it; what it saves exists only during its backward pass. A layer that is offloaded keeps
nothing of its own on the device.

Without a measurement all grows in proportion to the micro-batch; with several it is linear between
the measured sizes and beyond them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats, Integers
from heterps_envs.layer_costs.backward_peaks import BackwardPeaks, backward_peaks
from heterps_envs.layer_costs.samples import measurements_of

# Bytes of one number of a model's inputs.
_INPUT_BYTES = {
    "int64": 8, "int32": 4, "uint8": 1, "bool": 1, "float32": 4, "bfloat16": 2, "float16": 2,
}  # fmt: skip

_Field = Literal["activation_bytes", "shared_bytes", "peak_bytes"]


@dataclass(frozen=True)
class LayerMemory:
    """L layers on T device classes, one full micro-batch.

    Attributes:
        own_bytes: (L, T) saved for the backward pass, without what crosses a cut.
        shared_bytes: (L, T) saved besides, but one tensor for all layers of a stage (masks).
        in_bytes: (L,) crosses the cut in front of the layer.
        out_bytes: (L,) crosses the cut behind it; last: 0.
        saved_in_bytes: (L,) of `in_bytes`, what the layer saves itself.
        saved_out_bytes: (L,) of `out_bytes`, what the layer saves itself.
        workspace_bytes: (L, T) what a pass needs besides; 0 where nobody has measured it.
        deferred_bytes: (L,) held between the two parts of a zero-bubble backward pass; NaN where
            the profile does not say it.
        packed_bytes: (L,) of `out_bytes`, what is copied into one message: all, where the cut is of
            several tensors.
        passing: Of each tensor that crosses several cuts: the first and the last of them (layers in
            front), and its bytes.
        input_bytes: Samples and targets of one full micro-batch, which every device gets.
        backward_peaks: What backward passes hold for a while.
    """

    own_bytes: Floats
    shared_bytes: Floats
    in_bytes: Floats
    out_bytes: Floats
    saved_in_bytes: Floats
    saved_out_bytes: Floats
    workspace_bytes: Floats
    deferred_bytes: Floats
    packed_bytes: Floats
    passing: Floats
    input_bytes: float
    backward_peaks: BackwardPeaks

    def chain_bytes(self) -> Floats:
        """(L, T) whose sum over a stage is what it keeps inside, or more: each cut counts once."""
        again = np.maximum(self.saved_in_bytes[1:] - self.saved_out_bytes[:-1], 0.0)
        cuts = self.saved_out_bytes + np.concatenate([[self.saved_in_bytes[0]], again])
        return np.asarray(self.own_bytes + self.shared_bytes + cuts[:, None])

    def end_bytes(self) -> tuple[Floats, Floats]:
        """(L,), (L,) what a stage keeps beyond `chain_bytes` where it begins or ends there."""
        again = np.maximum(self.saved_in_bytes[1:] - self.saved_out_bytes[:-1], 0.0)
        counted = np.concatenate([[self.saved_in_bytes[0]], again])
        return self.in_bytes - counted, self.out_bytes - self.saved_out_bytes

    def computed_again(self) -> LayerMemory:
        """The same where all layers drop what they keep: of each only what enters it stays."""
        nothing = np.zeros_like(self.saved_out_bytes)
        return replace(
            self,
            own_bytes=np.zeros_like(self.own_bytes),
            saved_in_bytes=self.in_bytes,
            saved_out_bytes=nothing,
        )

    def offloaded(self) -> LayerMemory:
        """The same where the host keeps what all layers save."""
        return replace(
            self,
            own_bytes=np.zeros_like(self.own_bytes),
            saved_in_bytes=np.zeros_like(self.saved_in_bytes),
            saved_out_bytes=np.zeros_like(self.saved_out_bytes),
        )

    def put_off(self) -> LayerMemory:
        """The same with at least what waits for the second part of a zero-bubble backward pass."""
        at_cuts = self.chain_bytes() - self.own_bytes - self.shared_bytes
        waits = np.nan_to_num(self.deferred_bytes)[:, None]
        return replace(self, own_bytes=np.maximum(self.own_bytes, waits - at_cuts))

    @property
    def turn_bytes(self) -> Floats:
        """(L, T) most that the first part of a zero-bubble backward pass of a layer adds."""
        measured = self.backward_peaks.later_input
        turn = np.where(np.isnan(measured), self.deferred_bytes[:, None], measured)
        return np.asarray(np.nan_to_num(turn))

    def kept_bytes(
        self,
        first: int,
        last: int,
        kind: int,
        recomputed: Collection[int] = (),
        offloaded: Collection[int] = (),
    ) -> float:
        """Bytes that a stage keeps of one full micro-batch.

        Args:
            first: Its first layer.
            last: Its last layer (inclusive).
            kind: Index of its device class.
            recomputed: Layers of it that are computed again.
            offloaded: Layers of it that keep what they save in host memory.
        """
        own, front, back = self._parts(first, last, kind, recomputed, offloaded)
        shared = float(self.shared_bytes[first : last + 1, kind].max())
        inner = float(own.sum()) + float(np.maximum(front, back).sum()) + shared
        # What passes the stage by is received and sent on, in one piece of memory.
        begin, end, num_bytes = self.passing
        passed = num_bytes[(begin < first) & (end >= last)].sum()
        return inner + float(self.in_bytes[first] + self.out_bytes[last] - passed)

    def kept_bytes_of(self, starts: Integers) -> Floats:
        """(S, T) the same of stages that follow one another, over all layers.

        Args:
            starts: (S,) the first layer of each, from 0.
        """
        ends = np.append(starts[1:], len(self.in_bytes)) - 1
        cuts = self.in_bytes * 0.0
        cuts[1:] = np.maximum(self.saved_out_bytes[:-1], self.saved_in_bytes[1:])
        cuts[starts] = 0.0
        begin, end, num_bytes = self.passing
        passed = (begin < starts[:, None]) & (end >= ends[:, None])
        at_ends = self.in_bytes[starts] + self.out_bytes[ends] - passed @ num_bytes
        inner = np.add.reduceat(self.own_bytes + cuts[:, None], starts)
        shared = np.maximum.reduceat(self.shared_bytes, starts)
        return np.asarray(inner + shared + at_ends[:, None])

    def freed_bytes(
        self,
        first: int,
        last: int,
        kind: int,
        recomputed: Collection[int] = (),
        offloaded: Collection[int] = (),
    ) -> Floats:
        """(n + 1,) bytes that are free again when 0 .. n layers of a stage are done, back first.

        What crosses the stage's own ends stays until the backward pass is over.
        """
        own, front, back = self._parts(first, last, kind, recomputed, offloaded)
        freed = own.copy()
        freed[1:] += np.maximum(back - front, 0.0)
        freed[:-1] += front
        freed[0] += self.shared_bytes[first : last + 1, kind].max()
        return np.concatenate([[0.0], np.cumsum(freed[::-1])])

    def _parts(
        self,
        first: int,
        last: int,
        kind: int,
        recomputed: Collection[int],
        offloaded: Collection[int],
    ) -> tuple[Floats, Floats, Floats]:
        """What n layers keep: (n,) beside the cuts, (n - 1,) of each inner cut in front, behind."""
        again, gone = np.zeros((2, last + 1 - first), dtype=bool)
        again[[layer - first for layer in recomputed]] = True
        gone[[layer - first for layer in (*recomputed, *offloaded)]] = True
        part = slice(first, last + 1)
        own = np.where(gone, 0.0, self.own_bytes[part, kind])
        front = np.where(gone, 0.0, self.saved_out_bytes[part])[:-1]
        saved_in = np.where(gone, 0.0, self.saved_in_bytes[part])
        back = np.where(again, self.in_bytes[part], saved_in)[1:]
        return own, front, back


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
    # Only on a GPU does workspace come out of the memory that the limit is for: on a CPU it is the
    # host's, and limits of emulated devices leave it out as well.
    is_gpu = entry.kind == "gpu" and entry.emulation is None
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
