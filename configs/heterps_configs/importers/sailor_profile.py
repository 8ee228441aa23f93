"""Sailor's profiles as a model profile, so that every planner can use its measurements."""

from __future__ import annotations

from collections.abc import Mapping

from heterps_configs.documents.model_profile import LayerProfile, Measurement, ModelProfile
from heterps_configs.importers.sailor import SailorModel

_FLOAT_BYTES = 4


def to_model_profile(
    model: SailorModel, device_types: Mapping[str, str] | None = None
) -> ModelProfile:
    """Layers and measured times of a model; there are no operation counts in the files.

    So a device type that was not measured cannot be estimated from this profile.

    Args:
        model: Sizes without tensor parallelism must be known.
        device_types: Name of a device type for each of Sailor's GPU names; others keep theirs.

    Raises:
        HeterpsError: There are no sizes for tensor-parallel degree 1.
    """
    names = device_types or {}
    layers = sailor_layers(model)
    measurements = tuple(
        Measurement(
            device_type=names.get(shape.gpu, shape.gpu),
            tensor_parallel=shape.tensor_parallel,
            micro_batch_size=shape.micro_batch_size,
            forward_s=tuple(layer.forward_s for layer in times),
            backward_s=tuple(layer.backward_s for layer in times),
            optimizer_s=tuple(layer.update_s for layer in times),
        )
        for shape, times in sorted(model.times.items())
    )
    return ModelProfile(
        name=model.name,
        description="imported from Sailor's profiles",
        dtype="float32",
        layers=layers,
        measurements=measurements,
    )


def sailor_layers(model: SailorModel) -> tuple[LayerProfile, ...]:
    """The layers without tensor parallelism; bytes are those of float32, FLOPs are not known.

    Raises:
        HeterpsError: There are no sizes for tensor-parallel degree 1.
    """
    last = model.num_layers - 1
    return tuple(
        LayerProfile(
            name=f"layer{index}",
            kind="SailorLayer",
            num_parameters=size.parameters,
            forward_flops=0,
            backward_flops=0,
            activation_bytes=size.activation_memory * _FLOAT_BYTES,
            output_bytes=size.output * _FLOAT_BYTES if index < last else 0,
        )
        for index, size in enumerate(model.layer_sizes(1))
    )
