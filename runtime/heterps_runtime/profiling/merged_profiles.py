"""Merges profiles of one model: many device types, micro-batch sizes and days in one document."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError

Key = tuple[str, int, int, str]

# Fields that profiles of earlier versions lack.
_NEWER_FIELDS = (
    "saved_input_bytes",
    "saved_output_bytes",
    "deferred_bytes",
    "sent",
    "buffer_bytes",
    "parameter_sizes",
    "cast_bytes",
    "tensor_split",
    "constant_bytes",
    "attention_matrix_bytes",
    "frozen_parameters",
    "matrix_products",
    "num_kernels",
)
# Versions of torch compute the same by other operations.
_OF_A_VERSION = ("matrix_products", "num_kernels")


def merge_profiles(
    profiles: Sequence[tuple[str, ModelProfile]],
) -> tuple[ModelProfile, tuple[str, ...]]:
    """One profile with the measurements of all.

    Every measurement keeps its source, date and host. Of two for one device type, tensor-parallel
    degree, micro-batch size and dtype the later date wins, on one day that of the later file.

    Args:
        profiles: Each with the name of its file, for messages; at least one.

    Returns:
        The first profile with all measurements and what any trace knew, and a remark for each
        measurement that was left out.

    Raises:
        HeterpsError: The profiles are of different models; names the first layer that differs.
    """
    first_name, first = profiles[0]
    for name, profile in profiles[1:]:
        _check_same_model(first_name, first, name, profile)
    found: dict[Key, tuple[str, Measurement]] = {}
    remarks = []
    for name, profile in profiles:
        for entry in profile.measurements:
            key = _key(entry)
            if key in found:
                old_name, old = found[key]
                if entry == old:
                    continue
                is_later = entry.date >= old.date
                kept, left = (name, old_name) if is_later else (old_name, name)
                dates = (entry.date, old.date) if is_later else (old.date, entry.date)
                remarks.append(
                    f"{_in_words(entry)}: kept that of {kept} ({dates[0] or 'no date'}), "
                    f"left out that of {left} ({dates[1] or 'no date'})"
                )
                if not is_later:
                    continue
            found[key] = name, entry
    measurements = tuple(entry for _, (_, entry) in sorted(found.items()))
    source = next((p.source for _, p in profiles if p.source is not None), None)
    layers = tuple(map(_all_that_is_known, zip(*(p.layers for _, p in profiles), strict=True)))
    update = {"layers": layers, "measurements": measurements, "source": source}
    return first.changed(**update), tuple(remarks)


def _key(entry: Measurement) -> Key:
    return entry.device_type, entry.tensor_parallel, entry.micro_batch_size, entry.dtype


def _in_words(entry: Measurement) -> str:
    return f"{entry.device_type}, {entry.dtype}, micro-batch {entry.micro_batch_size}"


def _check_same_model(
    first_name: str, first: ModelProfile, name: str, profile: ModelProfile
) -> None:
    if first.dtype != profile.dtype:
        raise HeterpsError(
            f"{name}: its bytes are for {profile.dtype}, those of {first_name} for {first.dtype}"
        )
    for index, (ours, theirs) in enumerate(zip(first.layers, profile.layers, strict=False)):
        field = _differing_field(ours, theirs)
        if field is not None:
            raise HeterpsError(
                f"{name}: another model than {first_name}: layer {index} is {theirs.name!r} with "
                f"{field} {getattr(theirs, field)!r}, there {ours.name!r} with "
                f"{getattr(ours, field)!r}"
            )
    if first.num_layers != profile.num_layers:
        longer = max(first, profile, key=lambda entry: entry.num_layers)
        shorter = min(first.num_layers, profile.num_layers)
        raise HeterpsError(
            f"{name}: another model than {first_name}: {profile.num_layers} layers instead of "
            f"{first.num_layers}; the first one more is {longer.layers[shorter].name!r}"
        )


def _differing_field(ours: LayerProfile, theirs: LayerProfile) -> str | None:
    """The first field in which two layers differ; what only one trace knew is no difference."""
    for name, field in LayerProfile.model_fields.items():
        values = getattr(ours, name), getattr(theirs, name)
        is_unknown = name in _NEWER_FIELDS and field.default in values
        if values[0] != values[1] and not is_unknown and name not in _OF_A_VERSION:
            return name
    return None


def _all_that_is_known(layers: Sequence[LayerProfile]) -> LayerProfile:
    """One layer as several traces saw it; the first one that knows a newer field says it."""
    fields = LayerProfile.model_fields
    known = {
        name: next(
            (v for v in (getattr(a, name) for a in layers) if v != fields[name].default), None
        )
        for name in _NEWER_FIELDS
    }
    return layers[0].changed(**{k: v for k, v in known.items() if v is not None})
