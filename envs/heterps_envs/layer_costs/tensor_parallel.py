"""What one device of a tensor-parallel group holds and computes, and the sums over the group.

Of what a layer can split (`TensorSplit`), every device of a group has its share, in the whole units
that a run deals it (`group_slice`): heads by heads, columns by columns. The rest of the layer is on
each of them. What crosses cuts is whole on all of them. A layer that cannot be split, or has fewer
units than there are devices, stays as it is. Keys and values that several query heads share are on
each device that has some of these (`query_head_ranges`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.tensor_split import DividedNumbers, TensorSplit
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.group_slice import Share, fraction_of, key_value_fraction_of


class Splits:
    """The layers of a profile at each degree: found once, shared by copies of a problem."""

    def __init__(self, profile: ModelProfile) -> None:
        self.profile = profile
        self._at: dict[tuple[int, Share], ModelProfile] = {}

    def at(self, degree: int, share: Share = None) -> ModelProfile:
        """See `split_profile`."""
        if (degree, share) not in self._at:
            self._at[degree, share] = split_profile(self.profile, degree, share)
        return self._at[degree, share]


def split_profile(profile: ModelProfile, degree: int, share: Share = None) -> ModelProfile:
    """The layers as one device of a group of `degree` has them.

    Its measurements are those that were taken at that degree, of equal shares; as they are of such
    a device, they count as measurements of these layers.

    Args:
        profile: Of the whole layers.
        degree: Devices of the group.
        share: Of the device; by default an equal one, of unequal ones the largest.
    """
    if degree == 1:
        return profile
    measurements = profile.measurements if share is None else ()
    split: list[LayerProfile] = []
    for index, (layer, first) in enumerate(zip(profile.layers, profile.first_alike, strict=True)):
        is_new = first == index
        split.append(
            _split_layer(layer, degree, share)
            if is_new
            else split[first].changed_unchecked(name=layer.name)
        )
    return profile.changed(
        layers=tuple(split),
        measurements=tuple(
            entry.changed(tensor_parallel=1)
            for entry in measurements
            if entry.tensor_parallel == degree
        ),
    )


class SplitUnits(NamedTuple):
    """Into how many units the layers of a model divide.

    Attributes:
        counts: Each with the most devices of a group that splits such layers.
        key_values: Heads of keys and values that query heads share, likewise.
    """

    counts: frozenset[tuple[int, int]]
    key_values: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of(cls, profile: ModelProfile) -> SplitUnits:
        """Those of a model's layers."""
        splits = [layer.tensor_split for layer in profile.layers if layer.tensor_split]
        return cls(
            frozenset(
                (count, split.num_units) for split in splits for count in _unit_counts(split)
            ),
            frozenset((own.key_value_heads, own.num_units) for own in splits if own.key_values),
        )

    def leave_rests(self, degree: int) -> bool:
        """Whether of an even group of `degree` some devices get a unit more than others."""
        return any(count % degree for count, most in self.counts if degree <= most) or any(
            max(heads, degree) % min(heads, degree)
            for heads, most in self.key_values
            if degree <= most
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


def dealt_units(split: TensorSplit, degree: int) -> int:
    """Into how many parts a group of `degree` deals what a layer has fewest of."""
    heads = split.key_value_heads
    return heads if heads >= degree else split.num_units


def _split_layer(layer: LayerProfile, degree: int, share: Share) -> LayerProfile:
    split = split_at(layer, degree)
    if split is None:
        return layer.changed(tensor_split=None)
    held = _Held(split, degree, share)
    of_parameters = split.parameters / layer.num_parameters if layer.num_parameters else 0.0
    parameters = held.of("parameters", layer.num_parameters)
    return layer.changed(
        num_parameters=parameters,
        sparse_parameters=held.of("sparse_parameters", layer.sparse_parameters),
        tied_parameters=held.of("tied_parameters", layer.tied_parameters),
        forward_flops=held.of("forward_flops", layer.forward_flops),
        backward_flops=held.of("backward_flops", layer.backward_flops),
        activation_bytes=held.of("activation_bytes", layer.activation_bytes),
        memory_traffic_bytes=held.of("memory_traffic_bytes", layer.memory_traffic_bytes),
        shared_bytes=held.of("shared_bytes", layer.shared_bytes),
        attention_matrix_bytes=held.of("attention_matrix_bytes", layer.attention_matrix_bytes),
        deferred_bytes=None
        if layer.deferred_bytes is None
        else held.of("deferred_bytes", layer.deferred_bytes),
        frozen_parameters=round(layer.frozen_parameters * parameters / layer.num_parameters)
        if layer.num_parameters
        else 0,
        cast_bytes=None
        if layer.cast_bytes is None
        else layer.cast_bytes * (1 - of_parameters + of_parameters * held.share_of_parameters),
        parameter_sizes=_split_sizes(layer.parameter_sizes, split.parameters, degree)
        if share is None and not held.is_uneven and degree <= (split.key_value_heads or degree)
        else (),
        tensor_split=None,
    )


def _unit_counts(split: TensorSplit) -> list[int]:
    return [split.num_units, *(each.num_units for each in split.finer)]


class _Held:
    """What one device has of a layer that is split."""

    def __init__(self, split: TensorSplit, degree: int, share: Share) -> None:
        self._split = split
        heads, key_values = split.num_units, split.key_values
        self._own = fraction_of(share, degree, heads, split.key_value_heads)
        self._others: list[tuple[DividedNumbers, Fraction]] = [
            (e, fraction_of(share, degree, e.num_units)) for e in split.finer
        ]
        if key_values is not None:
            part = key_value_fraction_of(share, degree, heads, key_values.num_units)
            self._others.append((key_values, part))
        self.is_uneven = any(units % degree for units in _unit_counts(split))

    @property
    def share_of_parameters(self) -> float:
        """Of those that are split."""
        divided = self._split.parameters
        return self.of("parameters", divided) / divided if divided else 1.0

    def of(self, field: str, whole: float) -> float:
        """A number of the layer: its own part of what divides, and all of the rest.

        Args:
            field: Of the split.
            whole: Of the layer.
        """
        others = [(_number(each, field), part) for each, part in self._others]
        own = _number(self._split, field)
        rest = own - sum(divided for divided, _ in others)
        return whole - own + sum(_part(each, part) for each, part in ((rest, self._own), *others))


def _number(divided: DividedNumbers, field: str) -> float:
    value: float = getattr(divided, field)
    return value


def _part(divided: float, part: Fraction) -> float:
    """Of whole numbers a whole one."""
    if isinstance(divided, int):
        return -(-divided * part.numerator // part.denominator)
    return divided * part.numerator / part.denominator


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
